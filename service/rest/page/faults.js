import { ApiError } from "./api.js";

const NAMED = /^(inputs|occurrences)\[(\d+)\][^:\s]*:?/;
// "too long (302 tokens, limit 256)", or of characters "has 17005 characters; the limit is 16384"
const LONG = /(\d+) (tokens|characters)[,;] (?:the limit is|limit) (\d+)/;

/**
 * What is wrong with a part of a request, said of the sentence that this part is.
 *
 * @param {ApiError} error
 * @param {any} asked
 * @param {string[]} texts of all sentences
 */
export function ofSentences(error, asked, texts) {
  const [, list, place] = NAMED.exec(error.message) ?? [];
  const part = asked?.[list]?.[Number(place)];
  const number = texts.indexOf(part?.text ?? part) + 1;
  if (!number) return error;
  const [, count, what, limit] = LONG.exec(error.message) ?? [];
  const said = count
    ? `Sentence ${number} is too long: ${count} ${what}, the limit is ${limit}. Shorten it.`
    : error.message.replace(NAMED, (name) => `Sentence ${number}${name.endsWith(":") ? ":" : ""}`);
  return new ApiError(error.status, said);
}
