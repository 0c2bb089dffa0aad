import { ApiError } from "./api.js";

const FIELD = /^(inputs|occurrences)\[(\d+)\]/;
const UNIT = / (tokens|characters)/;

/**
 * Return an error of an input or occurrence with the number of its sentence in place of the field.
 *
 * @param {ApiError} error
 * @param {any} request
 * @param {string[]} texts of all sentences
 */
export function nameSentence(error, request, texts) {
  const [, list, index] = FIELD.exec(error.field) ?? [];
  const item = request?.[list]?.[Number(index)];
  const number = texts.indexOf(item?.text ?? item) + 1;
  if (!number) return error;
  const [, unit] = UNIT.exec(error.message) ?? [];
  const message = unit && error.limit !== null
    ? `Sentence ${number}: too long (${error.actual} ${unit}, limit ${error.limit}). Shorten it.`
    : error.message.replace(error.field, `Sentence ${number}`);
  return new ApiError(error.status, message);
}
