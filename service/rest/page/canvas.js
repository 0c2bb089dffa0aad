import { tint } from "./attention.js";

/**
 * Paint a matrix with one pixel per cell. The style sheet enlarges it. Small values are transparent, so that the
 * background is visible in light and dark mode.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number[][]} matrix
 * @param {number} largest the value that gets the full tint
 * @param {(row: number, column: number) => boolean} isIncluded whether to paint a cell
 * @param {number} [power] of the tint
 */
export function paint(canvas, matrix, largest, isIncluded = () => true, power = undefined) {
  canvas.height = Math.max(1, matrix.length);
  canvas.width = Math.max(1, matrix[0]?.length ?? 0);
  const context = canvas.getContext("2d");
  if (!context || !matrix.length) return;
  const style = getComputedStyle(document.documentElement);
  const colors = ["--positive", "--negative"].map((name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number));
  const image = context.createImageData(canvas.width, canvas.height);
  matrix.forEach((values, row) => values.forEach((value, column) => {
    if (!isIncluded(row, column)) return;
    const offset = 4 * (row * canvas.width + column);
    image.data.set(colors[value < 0 ? 1 : 0], offset);
    image.data[offset + 3] = 255 * tint(value, largest, power);
  }));
  context.putImageData(image, 0, 0);
}
