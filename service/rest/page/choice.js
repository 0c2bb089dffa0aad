import { isSaid, longestWord, same, sharedWord, wordsOf } from "./words.js";

/**
 * The word that is looked at in each sentence. A word chosen by the user stays chosen while its sentence has it,
 * wherever editing moves it, and the other sentences that have it follow. Without such a word the page chooses, and
 * chooses again when the text changes.
 *
 * @typedef {import("./words.js").Word & {piece?: boolean}} Choice  a piece is a token that is not a whole word
 * @typedef {{id: number, text: string, words: import("./words.js").Word[], picked: Choice | null,
 *            word: Choice | null}} Sentence  `picked` by the user, kept for when its word comes back; `word` is shown
 */

/** @returns {Sentence} */
export function sentenceOf(/** @type {number} */ id, /** @type {string} */ text) {
  return { id, text, words: wordsOf(text), picked: null, word: null };
}

/**
 * Return a sentence with another text: the choice of the user moves with its word, that of the page is given up.
 *
 * @param {Sentence} sentence
 * @param {string} text
 * @returns {Sentence}
 */
export function retyped(sentence, text) {
  return { ...sentence, text, words: wordsOf(text), picked: moved(sentence, text), word: null };
}

/** @returns {Choice | null} */
function moved(/** @type {Sentence} */ { text: before, picked }, /** @type {string} */ after) {
  const [old, characters] = [Array.from(before), Array.from(after)];
  const grown = characters.length - old.length;
  if (!picked || picked.start + grown < 0) return picked;
  // When all that follows is still there, the edit was before it.
  const along = old.slice(picked.start).join("") === characters.slice(picked.start + grown).join("") ? grown : 0;
  return { ...picked, start: picked.start + along, end: picked.end + along };
}

/**
 * Return the sentences with a unit of one of them chosen by the user.
 *
 * @param {Sentence[]} sentences
 * @param {number} id
 * @param {import("./words.js").Word} unit
 */
export function chosenIn(sentences, id, { text, start, end }) {
  return sentences.map((sentence) => {
    if (sentence.id !== id) return sentence;
    const piece = !sentence.words.some((word) => word.start === start && word.end === end);
    return { ...sentence, picked: { text, start, end, piece } };
  });
}

/**
 * Return the sentences, each with the word to look at. The user's choice comes first, in its own sentence and in others
 * that have the word; the rest keep their word. Without such a choice it is the word that sentences share, or if there
 * is none, the longest of each.
 *
 * @param {Sentence[]} sentences
 * @returns {Sentence[]}
 */
export function settledWords(sentences) {
  const picks = sentences.map((sentence) => found(sentence, sentence.picked));
  const chosen = picks.filter((pick) => pick !== null);
  const shared = sharedWord(sentences.map(({ words }) => words), sentences.flatMap(({ word }) => word ?? []));
  return sentences.map((sentence, place) => {
    const pick = picks[place];
    if (pick) return { ...sentence, picked: pick, word: pick };
    if (shared && !chosen.length) return { ...sentence, word: foundAnywhere(sentence, shared) };
    const followed = chosen.map((choice) => foundAnywhere(sentence, choice)).find((word) => word !== null);
    const last = chosen.length ? null : longestWord(sentence.words);
    return { ...sentence, word: followed ?? found(sentence, sentence.word) ?? last };
  });
}

/** Return whether a sentence has a word to look at. */
export function hasWords(/** @type {Sentence} */ { words }) {
  return words.some(isSaid);
}

/** Return the texts of the chosen words, each once. */
export function chosenTexts(/** @type {Sentence[]} */ sentences) {
  const words = sentences.flatMap(({ word }) => word ?? []);
  return words.filter((word, place) => words.findIndex((other) => same(word, other)) === place).map(({ text }) => text);
}

/**
 * Find the same word in a sentence, nearest to where it was.
 *
 * @param {Sentence} sentence
 * @param {Choice | null} choice
 * @returns {Choice | null}
 */
function found({ text, words }, choice) {
  if (!choice) return null;
  const places = choice.piece ? pieces(text, choice) : words.filter((word) => same(word, choice));
  return nearest(places, choice) ?? null;
}

/** Find the same word in a sentence, the first of several. */
function foundAnywhere(/** @type {Sentence} */ sentence, /** @type {Choice} */ choice) {
  return found(sentence, { ...choice, start: 0, end: Array.from(choice.text).length });
}

/** @returns {Choice[]} */
function pieces(/** @type {string} */ text, /** @type {Choice} */ piece) {
  const characters = Array.from(text);
  const length = piece.end - piece.start;
  return characters
    .map((_, start) => ({ ...piece, start, end: start + length }))
    .filter(({ start, end }) => characters.slice(start, end).join("") === piece.text);
}

/**
 * @template {{start: number}} T
 * @param {T[]} places
 * @param {{start: number}} was
 * @returns {T | undefined}
 */
export function nearest(places, was) {
  return places.toSorted((a, b) => Math.abs(a.start - was.start) - Math.abs(b.start - was.start))[0];
}
