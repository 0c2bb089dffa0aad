import { element, svg } from "./element.js";
import { bdi } from "./naming.js";
import { formatNumber } from "./number.js";
import { KINDS, RELATIONS } from "./settings.js";

const FAINTEST = 0.02; // share of the largest value from which a line is drawn
const LISTED = 5;

/** A map as lines from the words on the left to the words on the right; a line is as strong as its value. */
export class Lines {
  /**
   * @param {HTMLElement} root
   * @param {(row: number) => void} onRow called when the user selects a word on the left
   */
  constructor(root, onRow) {
    this.root = root;
    this.onRow = onRow;
    this.readout = element("p", { className: "readout", "aria-live": "polite" });
    this.shown = {};
  }

  /**
   * @param {import("./attention.js").AttentionMap} map
   * @param {number} chosen the unit whose lines are highlighted
   * @param {string} title
   */
  show(map, chosen, title) {
    if (this.shown.map === map && this.shown.chosen === chosen && this.root.contains(this.readout)) return;
    this.shown = { map, chosen };
    const hint = "Point at a word on the left, or move to it, to see its lines only. Click it, or press Enter, to follow it step by step.";
    if (map.isInput) return this.root.replaceChildren(element("p", { className: "quiet" }, "Layer 0 has no map: no words are mixed yet."));
    const lines = map.rows.flatMap((_, row) => map.columns.flatMap((__, column) => {
      const value = map.matrix[row][column];
      const strength = map.isIncluded(row, column) && map.largest > 0 ? Math.abs(value) / map.largest : 0;
      if (strength < FAINTEST) return [];
      const line = svg("line", { x1: 0, y1: row + 0.5, x2: 100, y2: column + 0.5, class: value < 0 ? "negative" : "", "data-row": row });
      line.style.setProperty("--strength-of-line", Math.min(1, strength).toFixed(3));
      return [line];
    }));
    const highlight = (/** @type {number} */ row) => {
      for (const line of lines) line.classList.toggle("other", row >= 0 && line.dataset.row !== String(row));
      this.readout.textContent = row < 0 ? hint : describeRow(map, row);
    };
    const chosenRow = map.rows.indexOf(chosen);
    const words = map.rows.map((place, row) => element("li", {}, element("button", {
      type: "button", className: `plain${place === chosen ? " chosen" : ""}`, "aria-label": describeRow(map, row),
      on: {
        pointerenter: () => highlight(row), focus: () => highlight(row), pointerleave: () => highlight(chosenRow), blur: () => highlight(chosenRow),
        click: () => this.onRow(row),
      },
    }, bdi(map.units[place].text))));
    const height = Math.max(map.rows.length, map.columns.length);
    const figure = svg("svg", { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", class: "lines", "aria-hidden": "true" }, ...lines);
    const box = element("div", { className: "between" }, element("ol", { "aria-label": "Words that attend" }, ...words), figure,
      element("ol", { "aria-hidden": "true" }, ...map.columns.map((place) => element("li", {}, bdi(map.units[place].text)))));
    box.style.setProperty("--rows", String(height));
    highlight(chosenRow);
    this.root.replaceChildren(element("p", { className: "quiet" }, `${title}. Stronger lines mean larger values.`
      + (map.isSigned ? " Dashed lines are negative." : "")), box, this.readout);
  }
}

/** Describe a row: "bank attends to check 0.271, cashed 0.243, ...". */
function describeRow(/** @type {import("./attention.js").AttentionMap} */ map, /** @type {number} */ row) {
  const ranked = map.columns.map((place, column) => ({ place, column, value: map.matrix[row][column] }))
    .filter(({ column }) => map.isIncluded(row, column))
    .toSorted((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, LISTED);
  const listed = ranked.map(({ place, value }) => `${map.nameOf(place)} ${formatNumber(value)}`).join(", ");
  return `${RELATIONS[KINDS[map.kind].relation].title} ${map.nameOf(map.rows[row])}: ${listed}.`;
}
