import { element } from "./element.js";
import { same } from "./words.js";

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const ORDINALS = new Intl.PluralRules("en", { type: "ordinal" });
const ENDINGS = { one: "st", two: "nd", few: "rd", other: "th" };

/** Return a word as an element that isolates its text direction. */
export function bdi(/** @type {string} */ text) {
  return element("bdi", {}, text);
}

/** Return the text of a unit for a line of units, whose direction special tokens must not decide. */
export function unitText(/** @type {{text: string, special: boolean}} */ { text, special }) {
  return special ? bdi(text) : text;
}

/** Isolate the text direction where markup is impossible: in accessible names, titles and options. */
export function isolated(/** @type {string} */ text) {
  return RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text;
}

/** Join words to a list of nodes. */
export function joinWords(/** @type {string[]} */ texts) {
  return texts.flatMap((text, position) => (position ? [", ", bdi(text)] : [bdi(text)]));
}

/** Return what is between an item of a list and the item before: ", ", " and " or ", and ". */
export function separator(/** @type {number} */ position, /** @type {number} */ count, /** @type {string} */ conjunction) {
  if (position < count - 1) return ", ";
  return count > 2 ? `, ${conjunction} ` : ` ${conjunction} `;
}

/**
 * Join words to a list of nodes with a conjunction, such as "cat, dog, and cow".
 *
 * @param {string[]} texts
 * @param {string} conjunction
 * @param {boolean} [more] whether the list ends with "others"
 * @returns {(string | Node)[]}
 */
export function listWords(texts, conjunction, more = false) {
  const items = [...texts.map(bdi), ...(more ? ["others"] : [])];
  return items.flatMap((item, position) => (position ? [separator(position, items.length, conjunction), item] : [item]));
}

/** Return a place in an order as text: "1st". */
export function rank(/** @type {number} */ place) {
  return `${place}${ENDINGS[ORDINALS.select(place)]}`;
}

/**
 * Return the ordinal of a word among equal words of a sentence, such as " (2nd)", or "" for a unique word.
 *
 * @param {{text: string, special?: boolean}[]} words of one sentence, in order
 * @param {number} index
 */
export function ordinal(words, index) {
  const equal = words.flatMap((word, position) => (!word.special && same(word, words[index]) ? position : []));
  const number = equal.indexOf(index) + 1;
  return equal.length < 2 || !number ? "" : ` (${rank(number)})`;
}
