/**
 * The words of a sentence by the server's rule, and which of them to start with. Offsets count characters (code
 * points), as the API's do.
 *
 * @typedef {{text: string, start: number, end: number}} Word
 */

const RUN = String.raw`[[\p{L}\p{N}\p{M}]--[\p{Ideographic}]]+`;
const WORD = new RegExp(String.raw`${RUN}(?:['’‐‑\-]${RUN})*|\S`, "gv");
const SAID = /[\p{L}\p{N}]/u;

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

/** Whether it is a word that says something, not a full stop. */
export function isSaid(/** @type {Word} */ word) {
  return SAID.test(word.text);
}

/**
 * For each sentence the word to look at first: the longest that all of them share, else each one's own longest.
 *
 * @param {Word[][]} sentences
 * @returns {(Word | null)[]}
 */
export function startingWords(sentences) {
  const filled = sentences.filter((words) => words.some(isSaid));
  const [first = [], ...others] = filled;
  const shared = first
    .filter((word) => isSaid(word) && others.every((words) => words.some((other) => same(word, other))))
    .toSorted((a, b) => length(b.text) - length(a.text))[0];
  return sentences.map((words) => {
    const said = words.filter(isSaid).toSorted((a, b) => length(b.text) - length(a.text));
    const common = filled.length > 1 && shared && words.find((word) => same(word, shared));
    return common || (said[0] ?? null);
  });
}

/** Whether two words are the same but for upper and lower case. */
export function same(/** @type {{text: string}} */ one, /** @type {{text: string}} */ other) {
  return one.text.toLowerCase() === other.text.toLowerCase();
}

function length(/** @type {string} */ text) {
  return Array.from(text).length;
}
