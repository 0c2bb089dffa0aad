import { tint } from "./attention.js";
import { svg } from "./element.js";

const FONT = "DejaVu Sans, Arial, sans-serif";
const LABEL_CHARACTERS = 14;
const LABELED_UNITS = 80;

/**
 * Return the colors of the style sheet as attributes, so that a figure looks the same outside of the page.
 *
 * @returns {Record<"ground" | "ink" | "quiet" | "positive" | "negative", string>}
 */
export function colors() {
  const style = getComputedStyle(document.documentElement);
  const value = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const triple = (/** @type {string} */ name) => `rgb(${value(name).split(/\s+/).join(",")})`;
  return {
    ground: value("--ground"), ink: value("--ink"), quiet: value("--quiet"),
    positive: triple("--positive"), negative: triple("--negative"),
  };
}

/**
 * Return a heat map with labels as SVG.
 *
 * @param {{title: string, rows: string[], columns: string[], values: number[][], largest: number, cell: number,
 *          isIncluded?: (row: number, column: number) => boolean, power?: number}} map `cell`: size of a cell in pixels;
 *   `power`: of the tint
 */
export function heatmapFigure({ title, rows, columns, values, largest, cell, isIncluded = () => true, power }) {
  const { ground, ink, quiet, positive, negative } = colors();
  const labeled = rows.length <= LABELED_UNITS && columns.length <= LABELED_UNITS;
  const font = Math.max(9, Math.min(13, cell * 0.62));
  const longest = (/** @type {string[]} */ names) => Math.max(1, ...names.map((name) => shorten(name).length));
  const left = labeled ? longest(rows) * font * 0.66 + 8 : 0;
  const top = (title ? 24 : 2) + (labeled ? longest(columns) * font * 0.66 + 8 : 0);
  const width = Math.ceil(Math.max(left + columns.length * cell + 2, title.length * 7.6));
  const height = Math.ceil(top + rows.length * cell + 2);
  const figure = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "font-family": FONT, "font-size": font });
  figure.append(svg("rect", { width, height, fill: ground }));
  if (title) figure.append(svg("text", { x: 2, y: 15, fill: ink, "font-size": 13, "font-weight": 600 }, title));
  const strength = 0.85;
  values.forEach((cells, row) => cells.forEach((value, column) => {
    const opacity = isIncluded(row, column) ? tint(value, largest, power) * strength : 0;
    if (opacity < 0.02) return;
    figure.append(svg("rect", {
      x: left + column * cell, y: top + row * cell, width: cell - (cell > 8 ? 1 : 0), height: cell - (cell > 8 ? 1 : 0),
      fill: value < 0 ? negative : positive, "fill-opacity": opacity.toFixed(3),
    }));
  }));
  if (!labeled) return figure;
  rows.forEach((name, row) => figure.append(svg("text", {
    x: left - 5, y: top + (row + 0.5) * cell + font * 0.35, "text-anchor": "end", fill: quiet,
  }, shorten(name))));
  columns.forEach((name, column) => {
    const x = left + (column + 0.5) * cell + font * 0.35;
    figure.append(svg("text", { transform: `translate(${x.toFixed(1)} ${top - 5}) rotate(-90)`, fill: quiet }, shorten(name)));
  });
  return figure;
}

function shorten(/** @type {string} */ name) {
  const characters = Array.from(name);
  return characters.length > LABEL_CHARACTERS ? `${characters.slice(0, LABEL_CHARACTERS - 1).join("")}…` : name;
}
