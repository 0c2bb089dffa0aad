import { nearest } from "./choice.js";
import { element } from "./element.js";
import { bdi, isolated, which } from "./naming.js";
import { written } from "./number.js";
import { KINDS } from "./settings.js";
import { same } from "./words.js";

/**
 * @typedef {{text: string, start: number, end: number, segment: number, special: boolean}} Unit
 * @typedef {{index: number, unit: Unit, value: number}} Draw  `index` is the unit's place in the sentence
 */

const RANKED = 5;

/** One map of one sentence, as the server sent it, and what can be read from it. */
export class AttentionMap {
  /**
   * @param {{units: Unit[], rows: number[], columns: number[], maps: any[]}} result
   * @param {any} asked the request for this sentence alone
   * @param {boolean} self whether what a unit takes from itself counts
   */
  constructor(result, asked, self) {
    const [{ matrix, excluded_mass: excluded, bias_share: bias, no_mass_rows: empty }] = result.maps;
    /** @type {number[][]} */
    this.matrix = matrix;
    /** @type {number[] | null} */
    this.excluded = excluded;
    /** @type {number[] | null} */
    this.bias = bias;
    /** @type {number[]} the rows of which nothing is left */
    this.empty = empty;
    this.self = self;
    this.asked = asked;
    this.kind = asked.kind;
    this.units = result.units;
    this.rows = result.rows;
    this.columns = result.columns;
    this.isShare = asked.kind === "probs" || asked.layer_reduce === "rollout";
    const counted = this.rows.flatMap((_, row) => matrix[row].filter((_, column) => this.counts(row, column)));
    this.isSigned = counted.some((value) => value < 0);
    this.largest = counted.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  }

  /** Return whether it is the map that a request for one sentence asks for. */
  answers(/** @type {object} */ request) {
    return JSON.stringify(request) === JSON.stringify(this.asked);
  }

  /** Whether a cell is part of the ranking and of the scale of the tints. */
  counts(/** @type {number} */ row, /** @type {number} */ column) {
    return this.self || this.rows[row] !== this.columns[column];
  }

  /**
   * The unit that a word of the sentence is in, also when the sentence has been edited since; -1 when there is none.
   *
   * @param {import("./words.js").Word} word
   */
  unitOf(word) {
    const there = this.units.findIndex((unit) => !unit.special && unit.start <= word.start && word.start < unit.end);
    const text = this.units[there]?.text ?? "";
    if (text && (text.includes(word.text) || word.text.includes(text))) return there;
    const alike = nearest(this.units.filter((unit) => !unit.special && same(unit, word)), word);
    return alike ? this.units.indexOf(alike) : -1;
  }

  /** A unit's name in a sentence: its text, and which it is when there are several of it. */
  nameOf(/** @type {number} */ index) {
    return isolated(this.units[index].text) + which(this.units, index);
  }

  /**
   * What a unit draws on, in the sentence's order; without itself, shares are shares among the others.
   *
   * @returns {Draw[]}
   */
  drawsOf(/** @type {number} */ index) {
    const row = this.rows.indexOf(index);
    if (row < 0) return [];
    const draws = this.columns
      .map((place, column) => ({ index: place, unit: this.units[place], value: this.matrix[row][column], column }))
      .filter(({ column }) => this.counts(row, column));
    const whole = this.isShare && !this.self ? draws.reduce((sum, { value }) => sum + value, 0) || 1 : 1;
    return draws.map(({ index: place, unit, value }) => ({ index: place, unit, value: value / whole }));
  }

  /** The same as a sentence, the largest first: "bank draws 0.271 from check, 0.243 from cashed". */
  described(/** @type {number} */ index) {
    const [verb, preposition] = KINDS[this.kind].says;
    const draws = this.drawsOf(index);
    const ranked = draws.toSorted((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, RANKED);
    const line = element("span", {}, element("strong", {}, bdi(this.units[index].text)),
      `${which(this.units, index)} ${verb} `);
    if (!ranked.length) line.append("on nothing else: there is no other word");
    ranked.forEach(({ index: place, unit, value }, rank) => {
      const name = place === index ? "itself" : bdi(/[\p{L}\p{N}]/u.test(unit.text) ? unit.text : `“${unit.text}”`);
      line.append(rank ? ", " : "", element("span", { className: "number" }, written(value)), ` ${preposition} `);
      line.append(element("em", {}, name), place === index ? "" : which(this.units, place));
    });
    line.append(".");
    return line;
  }

  /** What the numbers of a row are, where they are not those of the map. */
  get scale() {
    if (!this.isShare || this.self) return "The numbers are those of the map below.";
    const special = this.units.some((unit) => unit.special) ? "" : ", special tokens left out";
    return `The numbers are shares among the others${special}; the map below has what a word takes from itself, too.`;
  }

  /** How it was measured: "probs, layer 3, head 5". */
  get view() {
    const { kind, layers, layer_reduce: reduced, heads, head_reduce: together } = this.asked;
    const depth = reduced === "none" ? `layer ${layers[0]}` : reduced === "mean" ? "mean of all layers" : reduced;
    const width = heads === undefined ? "" : heads === "all" ? `, ${together} of all heads` : `, head ${heads[0]}`;
    return `${kind}, ${depth}${width}`;
  }
}

/**
 * How strongly a value is tinted, 0 to 1: the square root keeps small shares in sight.
 *
 * @param {number} value
 * @param {number} largest
 */
export function tint(value, largest) {
  return largest > 0 ? Math.sqrt(Math.min(1, Math.abs(value) / largest)) : 0;
}

/** Tint an element by its value; the style sheet has the colours. */
export function tinted(/** @type {HTMLElement} */ target, /** @type {number} */ value, /** @type {number} */ largest) {
  target.style.setProperty("--tint", tint(value, largest).toFixed(3));
  target.classList.toggle("negative", value < 0);
}
