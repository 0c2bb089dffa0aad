import { svg } from "./element.js";

const DRAWN = 6;
const THINNEST = 0.75;
const THICKEST = 5;
const HIGHEST = 20; // pixels above the words

/** Curves from the words that contribute most to the inspected word. They repeat the tints of the words. */
export class Links {
  constructor() {
    this.root = svg("svg", { class: "links", "aria-hidden": "true" });
  }

  /**
   * @param {HTMLElement[]} units
   * @param {number} target the inspected unit
   * @param {import("./attention.js").Contribution[]} contributions
   */
  draw(units, target, contributions) {
    const origin = this.root.getBoundingClientRect();
    const others = contributions.filter(({ index }) => index !== target);
    const largest = Math.max(0, ...others.map(({ value }) => Math.abs(value)));
    const ranked = others.toSorted((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, DRAWN);
    const place = (/** @type {number} */ index) => {
      const { left, right, top, bottom } = units[index].getBoundingClientRect();
      return { x: (left + right) / 2 - origin.left, top: top - origin.top, bottom: bottom - origin.top };
    };
    this.root.replaceChildren(...ranked.filter(({ value }) => value !== 0).map(({ index, value }) => {
      const share = Math.abs(value) / largest;
      return svg("path", {
        class: value < 0 ? "negative" : "positive", d: curve(place(index), place(target)),
        "stroke-width": (THINNEST + share * (THICKEST - THINNEST)).toFixed(2), "stroke-opacity": (0.25 + 0.6 * share).toFixed(2),
      });
    }));
  }

  clear() {
    this.root.replaceChildren();
  }
}

/**
 * Return the path between two words: an arc above a line of words, or an S between two lines.
 *
 * @param {{x: number, top: number, bottom: number}} from
 * @param {{x: number, top: number, bottom: number}} to
 */
function curve(from, to) {
  if (Math.abs(from.top - to.top) < 4) {
    const height = Math.min(HIGHEST, 6 + Math.abs(from.x - to.x) * 0.07) * (4 / 3); // a cubic reaches 3/4 of it
    const y = from.top + 2;
    return `M${from.x} ${y}C${from.x} ${y - height} ${to.x} ${y - height} ${to.x} ${y}`;
  }
  const [start, end] = from.top < to.top ? [from.bottom, to.top] : [from.top, to.bottom];
  const middle = (start + end) / 2;
  return `M${from.x} ${start}C${from.x} ${middle} ${to.x} ${middle} ${to.x} ${end}`;
}
