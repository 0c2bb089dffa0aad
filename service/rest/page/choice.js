import { isSaid, same, startingWords, wordsOf } from "./words.js";

/**
 * Which word of each sentence is looked at. A word that was chosen, by hand or to start with, stays chosen for as long
 * as its sentence has it, wherever editing moves it; a sentence without it takes one that is chosen in another, or none.
 *
 * @typedef {import("./words.js").Word & {piece?: boolean}} Choice  a piece is a token that is no whole word
 * @typedef {{id: number, text: string, words: import("./words.js").Word[], picked: Choice | null,
 *            word: Choice | null}} Sentence  `picked` by hand, kept for when its word comes back; `word` is shown
 */

/** @returns {Sentence} */
export function sentenceOf(/** @type {number} */ id, /** @type {string} */ text) {
  return { id, text, words: wordsOf(text), picked: null, word: null };
}

/**
 * A sentence with another text.
 *
 * @param {Sentence} sentence
 * @param {string} text
 * @returns {Sentence}
 */
export function retyped(sentence, text) {
  const [before, after] = [Array.from(sentence.text), Array.from(text)];
  const grown = after.length - before.length;
  const moved = (/** @type {Choice | null} */ choice) => {
    if (!choice || choice.start + grown < 0) return choice;
    // When all that follows is still there, the edit was before it.
    const along = before.slice(choice.start).join("") === after.slice(choice.start + grown).join("") ? grown : 0;
    return { ...choice, start: choice.start + along, end: choice.end + along };
  };
  return { ...sentence, text, words: wordsOf(text), picked: moved(sentence.picked), word: moved(sentence.word) };
}

/**
 * The sentences with a unit of one of them chosen; those where nothing was chosen by hand follow if they have it.
 *
 * @param {Sentence[]} sentences
 * @param {number} id
 * @param {import("./words.js").Word} unit
 */
export function chosenIn(sentences, id, { text, start, end }) {
  return sentences.map((sentence) => {
    if (sentence.id === id) {
      const piece = !sentence.words.some((word) => word.start === start && word.end === end);
      return { ...sentence, picked: { text, start, end, piece } };
    }
    if (found(sentence, sentence.picked)) return sentence;
    return { ...sentence, word: found(sentence, { text, start: 0, end: 0 }) ?? sentence.word };
  });
}

/**
 * The sentences, each with its word found again.
 *
 * @param {Sentence[]} sentences
 * @returns {Sentence[]}
 */
export function settledWords(sentences) {
  const kept = sentences.map((sentence) => {
    const picked = found(sentence, sentence.picked);
    return { ...sentence, picked: picked ?? sentence.picked, word: picked ?? found(sentence, sentence.word) };
  });
  const chosen = kept.flatMap(({ word }) => word ?? []);
  if (!chosen.length) {
    const starting = startingWords(kept.map(({ words }) => words));
    return kept.map((sentence, place) => ({ ...sentence, word: starting[place] }));
  }
  return kept.map((sentence) => {
    const others = chosen.map(({ text }) => found(sentence, { text, start: 0, end: 0 }));
    return { ...sentence, word: sentence.word ?? others.find((other) => other !== null) ?? null };
  });
}

/** Whether there is anything in it to look at. */
export function hasWords(/** @type {Sentence} */ { words }) {
  return words.some(isSaid);
}

/** The words that are chosen, each once. */
export function chosenTexts(/** @type {Sentence[]} */ sentences) {
  const words = sentences.flatMap(({ word }) => word ?? []);
  return words.filter((word, place) => words.findIndex((other) => same(word, other)) === place).map(({ text }) => text);
}

/**
 * The same word in a sentence, nearest to where it was.
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
