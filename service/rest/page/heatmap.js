import { applyTint } from "./attention.js";
import { paint } from "./canvas.js";
import { element, scroller } from "./element.js";
import { isolated, ordinal } from "./naming.js";
import { formatNumber } from "./number.js";
import { rove } from "./roving.js";

const TABLE_UNITS = 48;
const LISTED_PAIRS = 20;
const NARROW_UNITS = 10;

/** Contributions are tinted in proportion to their values, because few of them are near zero. */
export const PROPORTIONAL = 1;

/**
 * @typedef {import("./attention.js").Unit} Unit
 * @typedef {{rows: Unit[], columns: Unit[], values: number[][]}} WordPairs  contributions of each pair of words
 */

/** Return the sum of each row. */
export function rowSums(/** @type {number[][]} */ values) {
  return values.map(sum);
}

/** Return the sum of each column. */
export function columnSums(/** @type {number[][]} */ values) {
  return (values[0] ?? []).map((_, column) => sum(values.map((row) => row[column])));
}

export function sum(/** @type {number[]} */ values) {
  return values.reduce((total, value) => total + value, 0);
}

/** The contributions of all pairs of words to a similarity, as a table with its sums. */
export class Heatmap {
  constructor(/** @type {HTMLElement} */ root) {
    this.root = root;
    this.readout = element("p", { className: "readout", "aria-live": "polite" });
    /** @type {{values: number[][] | null, number: number}} */
    this.shown = { values: null, number: 0 };
    this.repaint = () => {};
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
  }

  /**
   * @param {WordPairs} pairs
   * @param {number} number that of the text
   */
  show(pairs, number) {
    const { rows, columns, values } = pairs;
    // Do not rebuild an unchanged heat map: this would lose the scroll position, the readout and the focus.
    if (this.shown.values === values && this.shown.number === number) return;
    this.shown = { values, number };
    this.repaint = () => {};
    const largest = largestOf(values);
    this.readout.textContent = "Point at a cell, tap it, or move to it with the arrow keys to read its value.";
    if (Math.max(rows.length, columns.length) > TABLE_UNITS) this.root.replaceChildren(...this.#picture(pairs, largest));
    else this.root.replaceChildren(this.#table(pairs, largest), this.readout);
  }

  #table(/** @type {WordPairs} */ { rows, columns, values }, /** @type {number} */ largest) {
    const sums = columnSums(values);
    const grid = rows.map((row, y) => [
      ...columns.map((column, x) => this.#cell(`${nameOf(rows, y)} and ${nameOf(columns, x)}`, values[y][x], `${y}:${x}`, largest)),
      this.#cell(`sum of ${nameOf(rows, y)}`, sum(values[y]), `${y}:${columns.length}`, null),
    ]);
    grid.push([
      ...columns.map((column, x) => this.#cell(`sum of ${nameOf(columns, x)}`, sums[x], `${rows.length}:${x}`, null)),
      this.#cell("sum of all pairs of words", sum(sums), `${rows.length}:${columns.length}`, null),
    ]);
    const table = element("table",
      { className: `matrix${columns.length > NARROW_UNITS ? " narrow" : ""}`, id: "word-pairs", role: "grid", "aria-readonly": "true" },
      element("caption", {}, element("span", {}, `Rows are the words of the query, columns the words of text ${this.shown.number}. `
        + "Each cell is the part of the score that a pair of words contributes. Stronger colors mean larger values. Orange cells are negative.")),
      element("thead", {}, element("tr", {}, element("td", { className: "corner" }),
        ...columns.map(({ text }) => element("th", { scope: "col" }, element("span", {}, text))),
        element("th", { scope: "col", className: "extra" }, element("span", {}, "sum")))),
      element("tbody", {}, ...grid.map((cells, y) =>
        element("tr", {}, element("th", { scope: "row" }, rows[y]?.text ?? "sum"), ...cells))));
    rove(table, grid);
    return scroller("Contributions of the pairs of words", table);
  }

  #cell(/** @type {string} */ name, /** @type {number} */ value, /** @type {string} */ place, /** @type {number | null} */ largest) {
    const description = `${name}: ${formatNumber(value)}`;
    const inspect = () => { this.readout.textContent = description; };
    const cell = element("td", {
      title: description, "aria-label": description, data: { place }, on: { focus: inspect, pointerenter: inspect },
    }, formatNumber(value));
    if (largest === null) cell.classList.add("extra");
    else applyTint(cell, value, largest, PROPORTIONAL);
    return cell;
  }

  /** Create an image of many word pairs, with a table of the largest. */
  #picture(/** @type {WordPairs} */ { rows, columns, values }, /** @type {number} */ largest) {
    const text = `text ${this.shown.number}`;
    const canvas = element("canvas", { className: "heatmap", role: "img", "aria-label":
      `Contributions of ${rows.length} words of the query and ${columns.length} words of ${text}. The table after the image lists the largest.` });
    this.repaint = () => paint(canvas, values, largest, () => true, PROPORTIONAL);
    this.repaint();
    const ranked = values.flatMap((cells, row) => cells.map((value, column) => ({ row, column, value })))
      .toSorted((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, LISTED_PAIRS);
    const table = element("table", { className: "matrix row", id: "word-pairs" },
      element("caption", {}, element("span", {}, `The ${ranked.length} largest contributions`)),
      element("thead", {}, element("tr", {}, ...["query", text, "value"].map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...ranked.map(({ row, column, value }) => {
        const cell = element("td", {}, formatNumber(value));
        applyTint(cell, value, largest, PROPORTIONAL);
        return element("tr", {}, element("th", { scope: "row" }, rows[row].text), element("td", {}, columns[column].text), cell);
      })));
    const box = scroller("Largest contributions", table);
    box.classList.add("tall");
    return [element("div", { className: "beside" }, canvas, box)];
  }
}

/** Return word pairs as rows for a CSV file. */
export function pairRows(/** @type {WordPairs} */ { rows, columns, values }) {
  return [["", ...columns.map(({ text }) => text)], ...rows.map(({ text }, row) => [text, ...values[row]])];
}

export function largestOf(/** @type {number[][]} */ values) {
  return values.flat().reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
}

function nameOf(/** @type {Unit[]} */ units, /** @type {number} */ index) {
  return isolated(units[index].text) + ordinal(units, index);
}
