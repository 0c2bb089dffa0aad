/**
 * The words of a sentence by the server's rule, and which of them to look at unless the user chooses. Offsets count characters (code
 * points), as the API's do.
 *
 * @typedef {{text: string, start: number, end: number}} Word
 */

const RUN = String.raw`[[\p{L}\p{N}\p{M}]--[\p{Ideographic}]]+`;
const WORD = new RegExp(String.raw`${RUN}(?:['’‐‑\-]${RUN})*|\S`, "gv");
const SAID = /[\p{L}\p{N}]/u;
const CONTENT_LENGTH = 4; // few function words of a language with spaces are as long

/** @returns {Word[]} */
export function wordsOf(/** @type {string} */ text) {
  let units = 0;
  let characters = 0;
  return Array.from(text.matchAll(WORD), ({ 0: word, index }) => {
    characters += length(text.slice(units, index));
    const start = characters;
    characters += length(word);
    units = index + word.length;
    return { text: word, start, end: characters };
  });
}

/** Return whether it is a word, not punctuation. */
export function isSaid(/** @type {Word} */ word) {
  return SAID.test(word.text);
}

/**
 * Find the word that most tells the sentences which share it apart from others, or null when no two share one. Without
 * a list of function words the length decides, and for short words how rarely they occur and where they stand: an
 * article comes before its noun and often begins a sentence.
 *
 * @param {Word[][]} sentences
 * @param {Word[]} current words chosen so far, kept while as many sentences have them as have any other
 * @returns {Word | null}
 */
export function sharedWord(sentences, current) {
  /** @type {Map<string, {word: Word, places: Map<number, number[]>}>} */
  const groups = new Map();
  sentences.forEach((words, number) => words.forEach((word, place) => {
    if (!isSaid(word)) return;
    const group = groups.get(key(word)) ?? { word, places: new Map() };
    group.places.set(number, [...(group.places.get(number) ?? []), place]);
    groups.set(key(word), group);
  }));
  const kept = new Set(current.map(key));
  const orderOf = (/** @type {{word: Word, places: Map<number, number[]>}} */ { word, places }) => {
    const isLong = length(word.text) >= CONTENT_LENGTH;
    const having = [...places.values()];
    const starts = having.map(([first]) => first);
    return [
      Number(isLong), having.length, Number(isLong && kept.has(key(word))), length(word.text),
      -having.flat().length, -starts.filter((start) => start === 0).length, Math.max(...starts),
    ];
  };
  const shared = [...groups.values()].filter(({ places }) => places.size > 1);
  const ranked = shared.map((group) => ({ word: group.word, order: orderOf(group) }));
  return ranked.toSorted((a, b) => compare(b.order, a.order))[0]?.word ?? null;
}

/** Find the longest word, of equals the last. */
export function longestWord(/** @type {Word[]} */ words) {
  return words.filter(isSaid).toSorted((a, b) => length(b.text) - length(a.text) || b.start - a.start)[0] ?? null;
}

/** Compare by the first numbers that differ. */
function compare(/** @type {number[]} */ one, /** @type {number[]} */ other) {
  return one.map((value, place) => value - other[place]).find((difference) => difference !== 0) ?? 0;
}

/** Return whether two words are the same, upper and lower case alike. */
export function same(/** @type {{text: string}} */ one, /** @type {{text: string}} */ other) {
  return key(one) === key(other);
}

function key(/** @type {{text: string}} */ { text }) {
  return text.toLowerCase();
}

function length(/** @type {string} */ text) {
  return Array.from(text).length;
}
