const DIGITS = 3;
const KILO = 1000;
const UNITS = ["bytes", "kB", "MB", "GB", "TB"];

/** Format a number: always the same digits, a minus sign (U+2212), and no negative zero. */
export function formatNumber(/** @type {number} */ value) {
  const text = value.toFixed(DIGITS);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "\u2212");
}

/** Format a whole number with separators of thousands. */
export function formatCount(/** @type {number} */ value) {
  return value.toLocaleString("en-US");
}

/** Format a size in decimal units: at most one digit after the point. */
export function formatBytes(/** @type {number} */ bytes) {
  const place = bytes < KILO ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log10(bytes) / 3));
  const value = (bytes / KILO ** place).toLocaleString("en-US", { maximumFractionDigits: 1 });
  return `${value} ${UNITS[place]}`;
}

/**
 * Decode a little-endian tensor of float16 or float32 from base64, as arrays of arrays.
 *
 * @param {{shape: number[], dtype: string, data: string}} tensor
 * @returns {any}
 */
export function decodeTensor({ shape, dtype, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const read = dtype === "float32"
    ? (/** @type {number} */ place) => view.getFloat32(4 * place, true)
    : (/** @type {number} */ place) => half(view.getUint16(2 * place, true));
  const nest = (/** @type {number} */ axis, /** @type {number} */ start) => {
    if (axis === shape.length) return read(start);
    const stride = shape.slice(axis + 1).reduce((product, size) => product * size, 1);
    return Array.from({ length: shape[axis] }, (_, index) => nest(axis + 1, start + index * stride));
  };
  return nest(0, 0);
}

/** Decode an IEEE 754 binary16 number: sign, 5 exponent bits, 10 fraction bits. */
function half(/** @type {number} */ bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
