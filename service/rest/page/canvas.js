import { tint } from "./attention.js";

/**
 * Paint a matrix, one pixel a cell; the style sheet makes it larger. What is not tinted is transparent, so the ground
 * shows through in light and dark alike.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number[][]} matrix
 * @param {number} largest the value that gets the full tint
 * @param {(row: number, column: number) => boolean} counts
 */
export function paint(canvas, matrix, largest, counts = () => true) {
  canvas.height = Math.max(1, matrix.length);
  canvas.width = Math.max(1, matrix[0]?.length ?? 0);
  const context = canvas.getContext("2d");
  if (!context || !matrix.length) return;
  const style = getComputedStyle(document.documentElement);
  const colours = ["--positive", "--negative"].map((name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number));
  const image = context.createImageData(canvas.width, canvas.height);
  matrix.forEach((values, row) => values.forEach((value, column) => {
    if (!counts(row, column)) return;
    const at = 4 * (row * canvas.width + column);
    image.data.set(colours[value < 0 ? 1 : 0], at);
    image.data[at + 3] = 255 * tint(value, largest);
  }));
  context.putImageData(image, 0, 0);
}
