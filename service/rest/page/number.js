const DIGITS = 3;

/** Write a number the same way everywhere on the page: a true minus sign, no minus zero. */
export function written(/** @type {number} */ value, digits = DIGITS) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "\u2212");
}

/** The numbers of a little-endian tensor that came in base64. */
export function decoded(/** @type {{shape: number[], dtype: string, data: string}} */ tensor) {
  const bytes = Uint8Array.from(atob(tensor.data), (character) => character.charCodeAt(0));
  const halves = new DataView(bytes.buffer);
  const [rows, columns] = tensor.shape;
  return Array.from({ length: rows }, (_, row) =>
    Array.from({ length: columns }, (_, column) => half(halves.getUint16(2 * (row * columns + column), true))),
  );
}

/** IEEE 754 binary16: sign, five bits of exponent, ten of fraction. */
function half(/** @type {number} */ bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
