import { element } from "./element.js";
import { same } from "./words.js";

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const ORDINALS = new Intl.PluralRules("en", { type: "ordinal" });
const ENDINGS = { one: "st", two: "nd", few: "rd", other: "th" };

/** A word in running text, by itself: one that is written from right to left moves nothing around it. */
export function bdi(/** @type {string} */ text) {
  return element("bdi", {}, text);
}

/** The same where there can be no markup: in names that are read out, titles and options. */
export function isolated(/** @type {string} */ text) {
  return RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text;
}

/** Words in running text, one after another. */
export function listed(/** @type {string[]} */ texts, between = ", ") {
  return texts.flatMap((text, place) => (place ? [between, bdi(text)] : [bdi(text)]));
}

/**
 * Which of several alike a word is: " (2nd)", or nothing when there is no other.
 *
 * @param {{text: string, special?: boolean}[]} words of one sentence, in its order
 * @param {number} index
 */
export function which(words, index) {
  const alike = words.flatMap((word, place) => (!word.special && same(word, words[index]) ? place : []));
  const number = alike.indexOf(index) + 1;
  return alike.length < 2 || !number ? "" : ` (${number}${ENDINGS[ORDINALS.select(number)]})`;
}
