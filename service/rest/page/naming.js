import { element } from "./element.js";
import { same } from "./words.js";

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const ORDINALS = new Intl.PluralRules("en", { type: "ordinal" });
const ENDINGS = { one: "st", two: "nd", few: "rd", other: "th" };

/** Return a word as an element that isolates its text direction. */
export function bdi(/** @type {string} */ text) {
  return element("bdi", {}, text);
}

/** Isolate the text direction where markup is impossible: in accessible names, titles and options. */
export function isolated(/** @type {string} */ text) {
  return RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text;
}

/** Join words to a list of nodes. */
export function joinWords(/** @type {string[]} */ texts, between = ", ") {
  return texts.flatMap((text, position) => (position ? [between, bdi(text)] : [bdi(text)]));
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
  return equal.length < 2 || !number ? "" : ` (${number}${ENDINGS[ORDINALS.select(number)]})`;
}
