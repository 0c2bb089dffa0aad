import { same } from "./words.js";

/**
 * The senses of a word, and the pairs of its occurrences by sense. An example declares the sense per sentence. For
 * other sentences the user can select it. Otherwise it is unknown.
 *
 * @typedef {{name: string, word: string}} Sense  a sense of one word of a sentence
 * @typedef {"same" | "other" | "unknown"} Group
 * @typedef {{a: number, b: number, group: Group}} Pair  places of two occurrences
 */

export const SENSES = ["A", "B"];

/** @type {Group[]} */
export const GROUPS = ["same", "other", "unknown"];

/**
 * Return the name of the sense of the selected word, or null if it is unknown.
 *
 * @param {{word: {text: string} | null, sense: Sense | null}} sentence
 */
export function senseOf({ word, sense }) {
  return word && sense && same(word, { text: sense.word }) ? sense.name : null;
}

/** Return whether an edit keeps at least half of a text, so that the sense of its word is probably the same. */
export function isSmallEdit(/** @type {string} */ before, /** @type {string} */ after) {
  const shorter = Math.min(before.length, after.length);
  let prefix = 0;
  while (prefix < shorter && before[prefix] === after[prefix]) prefix++;
  let suffix = 0;
  while (suffix < shorter - prefix && before.at(-1 - suffix) === after.at(-1 - suffix)) suffix++;
  return 2 * (prefix + suffix) >= Math.max(before.length, after.length);
}

/**
 * Return all pairs of occurrences.
 *
 * @param {(string | null)[]} senses the sense of each occurrence
 * @returns {Pair[]}
 */
export function pairsOf(senses) {
  return senses.flatMap((first, a) => senses.slice(a + 1).map((second, offset) => {
    const known = first !== null && second !== null;
    return { a, b: a + 1 + offset, group: known ? first === second ? "same" : "other" : "unknown" };
  }));
}

/** Return the mean value of pairs in a matrix of similarities. */
export function meanOf(/** @type {Pair[]} */ pairs, /** @type {number[][]} */ matrix) {
  return pairs.reduce((sum, { a, b }) => sum + matrix[a][b], 0) / pairs.length;
}
