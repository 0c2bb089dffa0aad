import { paint } from "./canvas.js";
import { element } from "./element.js";
import { PROPORTIONAL } from "./heatmap.js";
import { formatNumber } from "./number.js";

const MOST_CELLS = 48;

/** Return the dot product of two vectors. */
export function dot(/** @type {number[]} */ a, /** @type {number[]} */ b) {
  return a.reduce((sum, value, place) => sum + value * b[place], 0);
}

/** Return the length of a vector. */
export function norm(/** @type {number[]} */ a) {
  return Math.sqrt(dot(a, a));
}

export function cosine(/** @type {number[]} */ a, /** @type {number[]} */ b) {
  return dot(a, b) / (norm(a) * norm(b));
}

export function scaled(/** @type {number[]} */ a, /** @type {number} */ factor) {
  return a.map((value) => factor * value);
}

/** Return the softmax of scores; those that are not allowed get 0. */
export function softmax(/** @type {number[]} */ scores, isAllowed = (/** @type {number} */ _) => true) {
  const largest = Math.max(...scores.filter((_, place) => isAllowed(place)));
  const powers = scores.map((score, place) => (isAllowed(place) ? Math.exp(score - largest) : 0));
  const total = powers.reduce((sum, value) => sum + value, 0);
  return powers.map((value) => value / total);
}

/** Return the largest absolute value in the strips of vectors, for a common color scale. */
export function peak(/** @type {number[][]} */ vectors) {
  return Math.max(...vectors.map((vector) => Math.max(...vector.slice(0, MOST_CELLS).map(Math.abs))));
}

/**
 * Create a strip of colored cells, one per component of a vector. Longer vectors are cut: `data-cut` says at which number.
 *
 * @param {number[]} values
 * @param {{name: string, largest?: number}} options `name`: what the vector is; `largest`: the value of the full color
 */
export function strip(values, { name, largest = peak([values]) }) {
  const shown = values.slice(0, MOST_CELLS);
  const about = `${name}: ${values.length} numbers from ${formatNumber(Math.min(...values))} to ${formatNumber(Math.max(...values))}`;
  const canvas = element("canvas", { className: "cells", role: "img", "aria-label": about, title: about });
  canvas.style.setProperty("--cells", String(shown.length));
  canvas.addEventListener("pointermove", ({ offsetX }) => {
    const place = Math.max(0, Math.min(shown.length - 1, Math.floor((offsetX / canvas.clientWidth) * shown.length)));
    canvas.title = `${name}, component ${place + 1} of ${values.length}: ${formatNumber(values[place])}`;
  });
  paint(canvas, [shown], largest, () => true, PROPORTIONAL);
  if (values.length > shown.length) canvas.dataset.cut = `the first ${shown.length} of ${values.length}`;
  return canvas;
}

/** Create a bar for a share from 0 to 1, with its value, or with another number. */
export function bar(/** @type {number} */ share, number = share) {
  const filled = element("span", { className: "bar" });
  filled.style.setProperty("--length", share.toFixed(4));
  return element("span", { className: "share" }, element("span", { className: "number" }, formatNumber(number)), filled);
}
