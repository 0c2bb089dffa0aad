import { element } from "./element.js";
import { listWords } from "./naming.js";
import { distinctTexts } from "./words.js";

const VISIBLE = /[\p{L}\p{N}\p{P}\p{S}]/u;
const LISTED = 6;

/**
 * The words of a sentence that the model does not read: `unknown` ones, for which it has one common token, and `missing`
 * ones, which its tokenizer removes.
 *
 * @typedef {import("./choice.js").SegmentWord} SegmentWord
 * @typedef {{unknown: SegmentWord[], missing: SegmentWord[]}} Unread
 */

/**
 * @param {SegmentWord[]} words
 * @param {{id: number, start: number, end: number, segment: number, special: boolean}[] | null} tokens of POST /v1/tokenize,
 *   null if they are not known yet
 * @param {number | null} unknownId
 * @returns {Unread}
 */
export function unreadWords(words, tokens, unknownId) {
  if (tokens === null) return { unknown: [], missing: [] };
  const own = tokens.filter(({ special }) => !special);
  const tokensOf = (/** @type {SegmentWord} */ { start, end, segment }) =>
    own.filter((token) => token.segment === segment && token.start < end && token.end > start);
  return {
    unknown: words.filter((word) => VISIBLE.test(word.text) && tokensOf(word).some(({ id }) => id === unknownId)),
    missing: words.filter((word) => VISIBLE.test(word.text) && !tokensOf(word).length),
  };
}

/** Explain the unread words of a sentence. */
export function describeUnread(/** @type {Unread} */ { unknown, missing }) {
  const listed = (/** @type {SegmentWord[]} */ words) => {
    const distinct = distinctTexts(words);
    return listWords(distinct.slice(0, LISTED), "and", distinct.length > LISTED);
  };
  return [
    ...(unknown.length ? [element("span", {}, "The model does not know ", ...listed(unknown), ": it reads the same token for every unknown word. ")] : []),
    ...(missing.length ? [element("span", {}, "The model has no token for ", ...listed(missing), ", and does not read it.")] : []),
  ];
}
