import { chosenTexts, hasPair, hasWords } from "./choice.js";
import { listWords } from "./naming.js";
import { hasMaps } from "./settings.js";
import { same } from "./words.js";

const NO_MAPS = "This model was exported without hidden states and attention maps, so the page cannot show a word in context. Its other tab works.";

/** @typedef {import("./choice.js").Sentence} Sentence */

/** Return whether there are sentences with words, and all of them are pairs. */
export function areAllPairs(/** @type {Sentence[]} */ sentences) {
  const filled = sentences.filter(hasWords);
  return filled.length > 0 && filled.every(hasPair);
}

/**
 * Return the sentences with a selected word, and the words to compare: all occurrences if only one is selected.
 * @param {Sentence[]} single sentences without a pair
 */
export function findPlaces(single) {
  const selected = single.flatMap(({ word, ...sentence }) => (word ? [{ ...sentence, word }] : []));
  const places = selected.length === 1
    ? selected.flatMap((item) => item.words.filter((word) => same(word, item.word)).map((word) => ({ ...item, word })))
    : selected;
  return { selected, places };
}

/**
 * Return which sentences are not compared and why: `notes` beside a comparison, or the `message` in its place.
 * @param {{
 *   model: import("./settings.js").Model, sentences: Sentence[], filled: Sentence[], single: Sentence[], selected: Sentence[],
 *   isRejected: (sentence: Sentence) => boolean, numberOf: (id: number) => number,
 * }} context `filled` have words, `single` of them have no pair, and `selected` of those have a selected word
 */
export function describeCoverage({ model, sentences, filled, single, selected, isRejected, numberOf }) {
  const words = listWords(chosenTexts(single), "or");
  const list = (/** @type {Sentence[]} */ items) => items.map(({ id }) => `sentence ${numberOf(id)}`).join(", ");
  const lacking = list(single.filter(({ word }) => !word));
  const paired = list(filled.filter(hasPair));
  const rejected = list(sentences.filter(isRejected));
  const notes = [
    ...(rejected ? [`Not compared (too long): ${rejected}. `] : []),
    ...(lacking ? ["Not compared (without ", ...words, `): ${lacking}. `] : []),
    ...(paired ? [`Not compared (pairs): ${paired}.`] : []),
  ];
  const message = () => {
    if (!hasMaps(model)) return [NO_MAPS];
    if (rejected) return [`Shorten or truncate ${rejected} to compare.`];
    if (!filled.length) return ["Type two sentences with the same word, or select an example."];
    if (!selected.length) return ["Add two sentences without a pair to compare a word in them."];
    if (!lacking) return ["Add a second sentence with the same word to compare its vectors."];
    return [`Only sentence ${numberOf(selected[0].id)} contains `, ...words, ". Add it to another sentence, "
      + `or select a word in ${lacking}.`];
  };
  return { notes, message: message() };
}

/**
 * Explain why a sentence has no selected word.
 * @param {Sentence} sentence
 * @param {Sentence[]} sentences
 */
export function explainMissingWord(sentence, sentences) {
  if (sentence.word || !sentence.text.trim()) return [];
  if (!hasWords(sentence)) return ["This sentence contains no words."];
  return [
    "This sentence does not contain ", ...listWords(chosenTexts(sentences), "or"),
    ". Select a word of this sentence to compare.",
  ];
}
