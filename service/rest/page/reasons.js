import { applyTint } from "./attention.js";
import { downloads } from "./download.js";
import { element, select } from "./element.js";
import { heatmapFigure } from "./figure.js";
import { columnSums, Heatmap, largestOf, pairRows, PROPORTIONAL, rowSums } from "./heatmap.js";
import { unitText } from "./naming.js";
import { formatNumber } from "./number.js";
import { matchSums, matchTable, productTable, sumTable } from "./terms.js";

const CELL = 30; // pixels of a cell in saved figures
const TINTS = { sum: "sum of contributions", effect: "effect of leaving the word out" };
const SUM_MEANING = "The sum of the row or column of the word in the heat map. Pairs with special tokens are not included.";
const MATCH_MEANING = "Tokens of the query: the part of the score that the token contributes. Tokens of the text: the sum over the tokens matched with it.";
const EFFECT_MEANINGS = {
  leave_one_out: "How much the score falls if the vector of the word is left out. Orange: the score rises.",
  occlusion: "How much the score falls if the word is removed from the text. Orange: the score rises.",
};
const AGREEMENT = " This order of the words is closer to what happens when a word is removed from the text.";
const UNAVAILABLE = {
  max_pooling: "Contributions are not available: max pooling may take each component from a different word, so the score is not a sum over pairs of words.",
  nonlinear_dense_layers: "Contributions are not available: the dense layers of this model are not linear, so the score is not a sum over pairs of words.",
  distance: "Contributions are not available: the score is the negative distance of two vectors, which is not a sum over pairs of words. "
    + "The dot product and the cosine are.",
  cls_pooling: "Contributions are not available: the embedding of this model is the vector of its first token, so the score is not a sum over "
    + "pairs of words. The words show the effect of removing each word.",
  last_pooling: "Contributions are not available: the embedding of this model is the vector of its last token, so the score is not a sum over "
    + "pairs of words. The words show the effect of removing each word.",
};

/**
 * @typedef {import("./scorings.js").Pair} Pair
 * @typedef {{pair: Pair, number: number, effect: string | undefined, unavailable: string | null}} Reason
 *   `number` is that of the text, `effect` that of the request, and `unavailable` why there are no contributions
 */

/** The reasons for the score of a text: tinted words, and the terms that the score is the sum of. */
export class Reasons {
  /**
   * @param {string} tint
   * @param {(tint: string) => void} onTint
   */
  constructor(tint, onTint) {
    this.tint = tint;
    /** @type {Reason | null} */
    this.reason = null;
    this.words = element("div", { className: "in-place" });
    this.sum = element("div", {});
    this.message = element("p", { className: "quiet" });
    this.meaning = element("p", { id: "tint-meaning", className: "quiet" });
    this.map = element("div", { className: "figure" });
    this.heatmap = new Heatmap(this.map);
    this.save = downloads("heat map", () => this.#saved());
    this.tintPicker = select("Tint words by", Object.entries(TINTS).map(([value, text]) => ({ value, text })), tint,
      (chosen) => { this.setTint(chosen); onTint(chosen); }, { id: "tint", describedBy: "tint-meaning" });
    this.root = element("div", {}, element("div", { className: "pickers" }, this.tintPicker, this.meaning), this.words, this.message,
      element("div", { className: "beside" }, this.map, this.sum), this.save);
  }

  setTint(/** @type {string} */ tint) {
    this.tint = tint;
    /** @type {HTMLSelectElement} */ (this.tintPicker.querySelector("select")).value = tint;
    if (this.reason) this.show(this.reason);
  }

  show(/** @type {Reason} */ reason) {
    this.reason = reason;
    const { pair, number, unavailable } = reason;
    const contributions = unavailable ? null : pair.contributions;
    this.message.textContent = unavailable ? UNAVAILABLE[unavailable] ?? "Contributions are not available." : "";
    this.message.hidden = !unavailable;
    this.map.hidden = this.save.hidden = !contributions;
    this.#drawWords(reason, contributions);
    this.sum.replaceChildren(...(contributions ? [sumTable(pair)] : pair.matches ? [matchTable(pair, number)]
      : pair.products ? [productTable(pair, number)] : []));
    if (contributions) this.heatmap.show({ rows: pair.rows, columns: pair.columns, values: contributions }, number);
  }

  /** Tint the words of both texts by their part of the score, or by the effect of leaving them out. */
  #drawWords(/** @type {Reason} */ { pair, number, effect }, /** @type {number[][] | null} */ contributions) {
    const effects = pair.query_effects && pair.document_effects && [pair.query_effects, pair.document_effects];
    const sums = contributions ? [rowSums(contributions), columnSums(contributions)] : pair.matches ? matchSums(pair) : null;
    const isSum = sums !== null && (this.tint === "sum" || !effects);
    this.tintPicker.hidden = !contributions || !effects;
    this.words.hidden = this.meaning.hidden = !sums && !effects;
    const agreement = contributions && effect === "leave_one_out" ? AGREEMENT : "";
    this.meaning.textContent = !isSum ? (EFFECT_MEANINGS[effect ?? ""] ?? "") + agreement : contributions ? SUM_MEANING : MATCH_MEANING;
    const values = (isSum ? sums : effects) ?? [[], []];
    const largest = largestOf(values);
    const kind = pair.matches ? "Tokens" : "Words";
    this.words.replaceChildren(strip(`${kind} of the query`, pair.rows, values[0], largest),
      strip(`${kind} of text ${number}`, pair.columns, values[1], largest));
  }

  /** Return the heat map as a figure and as rows of numbers. */
  #saved() {
    const { pair, number } = this.reason ?? {};
    if (!pair?.contributions || !number) return null;
    const names = (/** @type {Pair["rows"]} */ units) => units.map(({ text }) => text);
    const { rows, columns, contributions: values } = pair;
    const figure = heatmapFigure({
      title: `Query and text ${number}: ${formatNumber(pair.score)}`, rows: names(rows), columns: names(columns), values,
      largest: largestOf(values), cell: CELL, power: PROPORTIONAL,
    });
    return { name: `attendant-similarity-${number}`, figure, rows: pairRows({ rows, columns, values }) };
  }
}

function strip(/** @type {string} */ name, /** @type {Pair["rows"]} */ units, /** @type {number[]} */ values, /** @type {number} */ largest) {
  return element("div", { className: "strip", role: "group", "aria-label": name },
    element("p", { className: "quiet" }, name), element("div", { className: "units", dir: "auto" }, ...units.map((unit, place) => {
      const word = element("span", { className: `unit${unit.special ? " special" : ""}` }, element("span", { className: "text" }, unitText(unit)), " ",
        element("span", { className: "value" }, values[place] === undefined ? "" : formatNumber(values[place])));
      applyTint(word, values[place] ?? 0, largest, PROPORTIONAL);
      return word;
    })));
}
