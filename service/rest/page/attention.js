import { nearest } from "./choice.js";
import { element } from "./element.js";
import { bdi, isolated, ordinal } from "./naming.js";
import { formatNumber } from "./number.js";
import { KINDS, RELATIONS } from "./settings.js";
import { same } from "./words.js";

/**
 * @typedef {{text: string, start: number, end: number, segment: number, special: boolean}} Unit
 * @typedef {{index: number, unit: Unit, value: number}} Contribution  `index` is that of the unit
 */

const LISTED_CONTRIBUTIONS = 3;

/** The attention map of one sentence, from a response of the server. */
export class AttentionMap {
  /**
   * @param {{units: Unit[], rows: number[], columns: number[], maps: any[]}} result
   * @param {any} request the request with this sentence as its only input
   * @param {{self: boolean, isInput: boolean}} options `self`: whether to include the contribution of a unit to itself;
   *   `isInput`: whether the view is at layer 0, where the map has units but no values
   */
  constructor(result, request, { self, isInput }) {
    const [{ layer, matrix, excluded_mass: excluded, bias_share: bias, empty_rows: empty }] = result.maps;
    /** @type {number | null} */
    this.layer = layer;
    /** @type {number[][]} */
    this.matrix = matrix;
    /** @type {number[] | null} */
    this.excluded = excluded;
    /** @type {number[] | null} */
    this.bias = bias;
    /** @type {number[]} rows without mass */
    this.empty = empty;
    this.self = self;
    this.isInput = isInput;
    this.request = request;
    this.kind = request.kind;
    this.units = result.units;
    this.rows = result.rows;
    this.columns = result.columns;
    this.isShare = request.kind === "probs" || request.layer_reduce === "rollout";
    const values = this.rows.flatMap((_, row) => matrix[row].filter((_, column) => this.isIncluded(row, column)));
    this.isSigned = values.some((value) => value < 0);
    this.largest = values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
  }

  /** Return whether the map is the result of a request. */
  isResultOf(/** @type {object} */ request) {
    return JSON.stringify(request) === JSON.stringify(this.request);
  }

  /** Return whether a cell is included in the ranking and in the color scale. */
  isIncluded(/** @type {number} */ row, /** @type {number} */ column) {
    return this.self || this.rows[row] !== this.columns[column];
  }

  /**
   * Return the index of the unit that contains a word, also after an edit of the sentence, or -1.
   *
   * @param {import("./choice.js").SegmentWord} word
   */
  unitOf(word) {
    const index = this.units.findIndex((unit) =>
      !unit.special && unit.segment === word.segment && unit.start <= word.start && word.start < unit.end);
    const text = this.units[index]?.text ?? "";
    if (text && (text.includes(word.text) || word.text.includes(text))) return index;
    const equal = nearest(this.units.filter((unit) => !unit.special && same(unit, word)), word);
    return equal ? this.units.indexOf(equal) : -1;
  }

  /** Return the text of a unit, with an ordinal if the sentence contains it several times. */
  nameOf(/** @type {number} */ index) {
    return isolated(this.units[index].text) + ordinal(this.units, index);
  }

  /**
   * Return the row of a unit in the order of the sentence. Without the unit itself, shares are relative to the others.
   *
   * @returns {Contribution[]}
   */
  contributionsOf(/** @type {number} */ index) {
    const row = this.isInput ? -1 : this.rows.indexOf(index);
    if (row < 0) return [];
    const cells = this.columns
      .map((position, column) => ({ index: position, unit: this.units[position], value: this.matrix[row][column], column }))
      .filter(({ column }) => this.isIncluded(row, column));
    const total = this.isShare && !this.self ? cells.reduce((sum, { value }) => sum + value, 0) || 1 : 1;
    return cells.map(({ index: position, unit, value }) => ({ index: position, unit, value: value / total }));
  }

  /** Return the largest values of a row as text: "Contributions to bank: check 0.271, cashed 0.243." */
  describe(/** @type {number} */ index) {
    const subject = [element("strong", {}, bdi(this.units[index].text)), ordinal(this.units, index)];
    if (this.isInput) return element("span", {}, "At layer 0, no other word contributes to ", ...subject, ".");
    const ranked = this.contributionsOf(index)
      .toSorted((a, b) => Math.abs(b.value) - Math.abs(a.value))
      .slice(0, LISTED_CONTRIBUTIONS);
    const line = element("span", {}, `${RELATIONS[KINDS[this.kind].relation].title} `, ...subject, ": ");
    if (!ranked.length) line.append("none, because there is no other word");
    ranked.forEach(({ index: position, unit, value }, rank) => {
      const name = position === index ? "itself" : bdi(/[\p{L}\p{N}]/u.test(unit.text) ? unit.text : `“${unit.text}”`);
      line.append(rank ? ", " : "", element("em", {}, name), position === index ? "" : ordinal(this.units, position), " ");
      line.append(element("span", { className: "number" }, formatNumber(value)));
    });
    line.append(".");
    return line;
  }

  /** Explain the values of the words above the map. */
  get scale() {
    if (this.isInput) return "Layer 0 is the input of the first layer: no words are mixed yet.";
    if (!this.isShare || this.self) return "The values are those of the map below.";
    const special = this.units.some((unit) => unit.special) ? "" : ", without special tokens";
    return `The values are shares among the other words${special}. The map below includes the word itself.`;
  }

  /** Describe the view: "probs, layer 3, head 5". */
  get view() {
    const { kind, layers, layer_reduce: layerReduce, heads, head_reduce: headReduce } = this.request;
    const covered = layers === "all" ? "all layers" : layers.length > 1 ? `layers 1 to ${layers.length}` : "layer 1";
    const layer = layerReduce === "none" ? `layer ${this.layer}` : `${layerReduce} of ${covered}`;
    const head = heads === undefined ? "" : heads === "all" ? `, ${headReduce} of all heads` : `, head ${heads[0]}`;
    return `${kind}, ${layer}${head}`;
  }
}

/**
 * Return the tint of a value, from 0 to 1. The square root keeps small shares visible.
 *
 * @param {number} value
 * @param {number} largest
 * @param {number} power
 */
export function tint(value, largest, power = 0.5) {
  return largest > 0 ? Math.min(1, Math.abs(value) / largest) ** power : 0;
}

/**
 * Tint an element by its value. The style sheet defines the colors.
 *
 * @param {HTMLElement} target
 * @param {number} value
 * @param {number} largest
 * @param {number} [power]
 */
export function applyTint(target, value, largest, power) {
  target.style.setProperty("--tint", tint(value, largest, power).toFixed(3));
  target.classList.toggle("negative", value < 0);
}
