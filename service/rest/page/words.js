/**
 * The words of a sentence by the rule of the server, and the default selection. Offsets are in code points, as in
 * the API.
 *
 * @typedef {{text: string, start: number, end: number}} Word
 */

const RUN = String.raw`[[\p{L}\p{N}\p{M}]--[\p{Ideographic}]]+`;
const EMOJI = String.raw`\p{Extended_Pictographic}[\p{M}\p{Emoji_Modifier}\u{e0020}-\u{e007f}]*`;
const FLAG = String.raw`\p{Regional_Indicator}{2}`;
const OTHER = String.raw`[^\p{White_Space}\x1c-\x1f]`; // the non-space characters of Python, which differ from \S
const QUOTE = String.raw`(?<=\p{Script=Hebrew})"(?=\p{Script=Hebrew})`; // typed for gershayim
const JOINER = String.raw`['’‐‑·‧׳״\-]|${QUOTE}|[\p{Cf}--\u200b]+`;
const WORD = new RegExp(String.raw`${RUN}(?:(?:${JOINER})${RUN})*|${EMOJI}(?:\u200d${EMOJI})*|${FLAG}|${OTHER}`, "gv");
const WORD_CHARACTER = /[\p{L}\p{N}]/u;
const CONTENT_LENGTH = 4; // few function words of languages with spaces are as long

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

/** Return whether a word is more than punctuation. */
export function isWord(/** @type {Word} */ word) {
  return WORD_CHARACTER.test(word.text);
}

/**
 * Return the most distinctive word that at least two sentences contain, or null. Instead of using a stop word list, it
 * prefers long words and ranks short ones by frequency and position, because articles precede their nouns and often
 * start a sentence.
 *
 * @param {Word[][]} sentences
 * @param {Word[]} current the current words, kept if no other word is in more sentences
 * @returns {Word | null}
 */
export function sharedWord(sentences, current) {
  /** @type {Map<string, {word: Word, places: Map<number, number[]>}>} */
  const groups = new Map();
  sentences.forEach((words, number) => words.forEach((word, position) => {
    if (!isWord(word)) return;
    const group = groups.get(key(word)) ?? { word, places: new Map() };
    group.places.set(number, [...(group.places.get(number) ?? []), position]);
    groups.set(key(word), group);
  }));
  const kept = new Set(current.map(key));
  const orderOf = (/** @type {{word: Word, places: Map<number, number[]>}} */ { word, places }) => {
    const isLong = length(word.text) >= CONTENT_LENGTH;
    const positions = [...places.values()];
    const starts = positions.map(([first]) => first);
    return [
      Number(isLong), positions.length, Number(isLong && kept.has(key(word))), length(word.text),
      -positions.flat().length, -starts.filter((start) => start === 0).length, Math.max(...starts),
    ];
  };
  const shared = [...groups.values()].filter(({ places }) => places.size > 1);
  const ranked = shared.map((group) => ({ word: group.word, order: orderOf(group) }));
  return ranked.toSorted((a, b) => compare(b.order, a.order))[0]?.word ?? null;
}

/** Find the longest word, or the last of several. */
export function longestWord(/** @type {Word[]} */ words) {
  return words.filter(isWord).toSorted((a, b) => length(b.text) - length(a.text) || b.start - a.start)[0] ?? null;
}

/** Compare two lists of numbers by the first difference. */
function compare(/** @type {number[]} */ left, /** @type {number[]} */ right) {
  return left.map((value, position) => value - right[position]).find((difference) => difference !== 0) ?? 0;
}

/** Return whether two words are equal, ignoring case. */
export function same(/** @type {{text: string}} */ left, /** @type {{text: string}} */ right) {
  return key(left) === key(right);
}

/** Return the texts of different words, each in the case of its first occurrence. */
export function distinctTexts(/** @type {{text: string}[]} */ words) {
  return words.filter((word, place) => words.findIndex((other) => same(word, other)) === place).map(({ text }) => text);
}

function key(/** @type {{text: string}} */ { text }) {
  return text.toLowerCase();
}

function length(/** @type {string} */ text) {
  return Array.from(text).length;
}
