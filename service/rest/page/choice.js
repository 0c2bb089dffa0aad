import { isSmallEdit } from "./senses.js";
import { distinctTexts, isWord, longestWord, same, sharedWord, wordsOf } from "./words.js";

/**
 * The selected word of each sentence. A word selected by the user stays selected while its sentence contains it, also
 * if an edit moves it. It is selected in other sentences too. Otherwise the page selects a word after every edit.
 *
 * @typedef {import("./words.js").Word & {segment: number}} SegmentWord  segment 0 is the text, 1 its pair
 * @typedef {SegmentWord & {piece?: boolean}} Choice  `piece`: a token that is only a part of a word
 * @typedef {{id: number, text: string, pair: string | null, words: SegmentWord[], picked: Choice | null,
 *            word: Choice | null, sense: import("./senses.js").Sense | null}} Sentence  `picked`: selected by the user,
 *   kept while the word is missing; `word`: selected now
 */

/** @returns {Sentence} */
export function createSentence(/** @type {number} */ id, /** @type {string} */ text, /** @type {string | null} */ pair = null) {
  return { id, text, pair, words: segmentWords(text, pair), picked: null, word: null, sense: null };
}

/** @returns {SegmentWord[]} */
function segmentWords(/** @type {string} */ text, /** @type {string | null} */ pair) {
  return [text, pair ?? ""].flatMap((part, segment) => wordsOf(part).map((word) => ({ ...word, segment })));
}

/**
 * Return a sentence with another text. The choice of the user moves with its word. The choice of the page is removed.
 *
 * @param {Sentence} sentence
 * @param {string} text
 * @returns {Sentence}
 */
export function withText(sentence, text) {
  return {
    ...sentence, text, words: segmentWords(text, sentence.pair), picked: movedChoice(sentence, 0, text), word: null,
    sense: isSmallEdit(sentence.text, text) ? sentence.sense : null,
  };
}

/**
 * Return a sentence with another second text, or without one.
 *
 * @param {Sentence} sentence
 * @param {string | null} pair
 * @returns {Sentence}
 */
export function withPair(sentence, pair) {
  return {
    ...sentence, pair, words: segmentWords(sentence.text, pair), picked: movedChoice(sentence, 1, pair ?? ""), word: null,
  };
}

/** @returns {Choice | null} */
function movedChoice(/** @type {Sentence} */ { text, pair, picked }, /** @type {number} */ segment, /** @type {string} */ after) {
  const [old, characters] = [Array.from(segment ? pair ?? "" : text), Array.from(after)];
  const growth = characters.length - old.length;
  if (!picked || picked.segment !== segment || picked.start + growth < 0) return picked;
  // If the rest of the text is unchanged, the edit was before the word.
  const shift = old.slice(picked.start).join("") === characters.slice(picked.start + growth).join("") ? growth : 0;
  return { ...picked, start: picked.start + shift, end: picked.end + shift };
}

/**
 * Return the sentences with a unit of one sentence selected by the user.
 *
 * @param {Sentence[]} sentences
 * @param {number} id
 * @param {SegmentWord} unit
 */
export function withChoice(sentences, id, { text, start, end, segment }) {
  return sentences.map((sentence) => {
    if (sentence.id !== id) return sentence;
    const piece = !sentence.words.some((word) => word.segment === segment && word.start === start && word.end === end);
    return { ...sentence, picked: { text, start, end, segment, piece } };
  });
}

/**
 * Return the sentences with their selected words. A choice of the user has priority, in its own sentence and in others
 * that contain the word. Other sentences keep their word. Without a choice of the user, select the word whose sense at
 * least two sentences declare, another shared word, or the longest word of each sentence.
 *
 * @param {Sentence[]} sentences
 * @returns {Sentence[]}
 */
export function selectWords(sentences) {
  const picks = sentences.map((sentence) => locate(sentence, sentence.picked));
  const chosen = picks.filter((pick) => pick !== null);
  const shared = wordWithSenses(sentences) ?? sharedWord(sentences.map(({ words }) => words), sentences.flatMap(({ word }) => word ?? []));
  return sentences.map((sentence, place) => {
    const pick = picks[place];
    if (pick) return { ...sentence, picked: pick, word: pick };
    if (shared && !chosen.length) return { ...sentence, word: locateFirst(sentence, shared) };
    const followed = chosen.map((choice) => locateFirst(sentence, choice)).find((word) => word !== null);
    const last = chosen.length ? null : locateFirst(sentence, longestWord(sentence.words), true);
    return { ...sentence, word: followed ?? locate(sentence, sentence.word) ?? last };
  });
}

/** Return the word whose sense at least two sentences declare, or null. A sentence without the word does not count. */
function wordWithSenses(/** @type {Sentence[]} */ sentences) {
  const declared = sentences.flatMap(({ words, sense }) => words.find((word) => sense && same(word, { text: sense.word })) ?? []);
  return declared.find((word, place) => declared.findIndex((other) => same(other, word)) < place) ?? null;
}

/** Return whether the text of a sentence contains a word. */
export function hasWords(/** @type {Sentence} */ { words }) {
  return words.some((word) => word.segment === 0 && isWord(word));
}

/** Return whether a sentence has a second text. */
export function hasPair(/** @type {Sentence} */ { pair }) {
  return pair !== null && pair.trim() !== "";
}

/** Return a sentence as an input of the API. */
export function inputOf(/** @type {Sentence} */ sentence) {
  return hasPair(sentence) ? { text: sentence.text, pair: sentence.pair } : sentence.text;
}

/** Return the distinct texts of the selected words. */
export function chosenTexts(/** @type {Sentence[]} */ sentences) {
  return distinctTexts(sentences.flatMap(({ word }) => word ?? []));
}

/**
 * Find a word in a sentence, nearest to its previous position.
 *
 * @param {Sentence} sentence
 * @param {Choice | null} choice
 * @returns {Choice | null}
 */
function locate(sentence, choice) {
  if (!choice) return null;
  const places = choice.piece ? pieces(sentence, choice) : sentence.words.filter((word) => same(word, choice));
  return nearest(places, choice) ?? null;
}

/**
 * Find the first occurrence of a word in a sentence, or its own place.
 *
 * @param {Sentence} sentence
 * @param {import("./words.js").Word & {segment?: number, piece?: boolean} | null} choice
 * @param {boolean} [inPlace]
 */
function locateFirst(sentence, choice, inPlace = false) {
  if (!choice) return null;
  const place = inPlace ? {} : { start: 0, end: Array.from(choice.text).length };
  return locate(sentence, { segment: 0, ...choice, ...place });
}

/** @returns {Choice[]} */
function pieces(/** @type {Sentence} */ { text, pair }, /** @type {Choice} */ piece) {
  const characters = Array.from(piece.segment ? pair ?? "" : text);
  const length = piece.end - piece.start;
  return characters
    .map((_, start) => ({ ...piece, start, end: start + length }))
    .filter(({ start, end }) => characters.slice(start, end).join("") === piece.text);
}

/**
 * @template {{start: number, segment: number}} T
 * @param {T[]} places
 * @param {{start: number, segment: number}} origin
 * @returns {T | undefined}
 */
export function nearest(places, origin) {
  const distance = (/** @type {T} */ { start, segment }) => Number(segment !== origin.segment) * 1e6 + Math.abs(start - origin.start);
  return places.toSorted((a, b) => distance(a) - distance(b))[0];
}
