import { isWord, longestWord, same, sharedWord, wordsOf } from "./words.js";

/**
 * The selected word of each sentence. A word selected by the user stays selected while its sentence contains it, also
 * if an edit moves it. It is selected in other sentences too. Otherwise the page selects a word after every edit.
 *
 * @typedef {import("./words.js").Word & {piece?: boolean}} Choice  `piece`: a token that is only a part of a word
 * @typedef {{id: number, text: string, words: import("./words.js").Word[], picked: Choice | null,
 *            word: Choice | null}} Sentence  `picked`: selected by the user, kept while the word is missing; `word`: selected now
 */

/** @returns {Sentence} */
export function createSentence(/** @type {number} */ id, /** @type {string} */ text) {
  return { id, text, words: wordsOf(text), picked: null, word: null };
}

/**
 * Return a sentence with another text. The choice of the user moves with its word. The choice of the page is removed.
 *
 * @param {Sentence} sentence
 * @param {string} text
 * @returns {Sentence}
 */
export function withText(sentence, text) {
  return { ...sentence, text, words: wordsOf(text), picked: movedChoice(sentence, text), word: null };
}

/** @returns {Choice | null} */
function movedChoice(/** @type {Sentence} */ { text: before, picked }, /** @type {string} */ after) {
  const [old, characters] = [Array.from(before), Array.from(after)];
  const growth = characters.length - old.length;
  if (!picked || picked.start + growth < 0) return picked;
  // If the rest of the text is unchanged, the edit was before the word.
  const shift = old.slice(picked.start).join("") === characters.slice(picked.start + growth).join("") ? growth : 0;
  return { ...picked, start: picked.start + shift, end: picked.end + shift };
}

/**
 * Return the sentences with a unit of one sentence selected by the user.
 *
 * @param {Sentence[]} sentences
 * @param {number} id
 * @param {import("./words.js").Word} unit
 */
export function withChoice(sentences, id, { text, start, end }) {
  return sentences.map((sentence) => {
    if (sentence.id !== id) return sentence;
    const piece = !sentence.words.some((word) => word.start === start && word.end === end);
    return { ...sentence, picked: { text, start, end, piece } };
  });
}

/**
 * Return the sentences with their selected words. A choice of the user has priority, in its own sentence and in others
 * that contain the word. Other sentences keep their word. Without a choice of the user, select a shared word, or the
 * longest word of each sentence.
 *
 * @param {Sentence[]} sentences
 * @returns {Sentence[]}
 */
export function selectWords(sentences) {
  const picks = sentences.map((sentence) => locate(sentence, sentence.picked));
  const chosen = picks.filter((pick) => pick !== null);
  const shared = sharedWord(sentences.map(({ words }) => words), sentences.flatMap(({ word }) => word ?? []));
  return sentences.map((sentence, place) => {
    const pick = picks[place];
    if (pick) return { ...sentence, picked: pick, word: pick };
    if (shared && !chosen.length) return { ...sentence, word: locateFirst(sentence, shared) };
    const followed = chosen.map((choice) => locateFirst(sentence, choice)).find((word) => word !== null);
    const last = chosen.length ? null : longestWord(sentence.words);
    return { ...sentence, word: followed ?? locate(sentence, sentence.word) ?? last };
  });
}

/** Return whether a sentence contains a word. */
export function hasWords(/** @type {Sentence} */ { words }) {
  return words.some(isWord);
}

/** Return the distinct texts of the selected words. */
export function chosenTexts(/** @type {Sentence[]} */ sentences) {
  const words = sentences.flatMap(({ word }) => word ?? []);
  return words.filter((word, place) => words.findIndex((other) => same(word, other)) === place).map(({ text }) => text);
}

/**
 * Find a word in a sentence, nearest to its previous position.
 *
 * @param {Sentence} sentence
 * @param {Choice | null} choice
 * @returns {Choice | null}
 */
function locate({ text, words }, choice) {
  if (!choice) return null;
  const places = choice.piece ? pieces(text, choice) : words.filter((word) => same(word, choice));
  return nearest(places, choice) ?? null;
}

/** Find the first occurrence of a word in a sentence. */
function locateFirst(/** @type {Sentence} */ sentence, /** @type {Choice} */ choice) {
  return locate(sentence, { ...choice, start: 0, end: Array.from(choice.text).length });
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
 * @param {{start: number}} origin
 * @returns {T | undefined}
 */
export function nearest(places, origin) {
  return places.toSorted((a, b) => Math.abs(a.start - origin.start) - Math.abs(b.start - origin.start))[0];
}
