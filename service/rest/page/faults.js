import { ApiError } from "./api.js";

const FIELD = /^(inputs|occurrences|queries|documents)\[(\d+)\]/;
const UNIT = / (tokens|characters)/;

/**
 * Return an error of an input with the name that the page has for it in place of the field.
 *
 * @param {ApiError} error
 * @param {any} request
 * @param {(item: any, list: string) => string} nameOf returns the name of an item of a list of the request, or ""
 */
export function nameInput(error, request, nameOf) {
  const [, list, index] = FIELD.exec(error.field) ?? [];
  const item = request?.[list]?.[Number(index)];
  const name = item === undefined ? "" : nameOf(item, list);
  if (!name) return error;
  const [, unit] = UNIT.exec(error.message) ?? [];
  const message = unit && error.limit !== null
    ? `${name}: too long (${error.actual} ${unit}, limit ${error.limit}). Shorten it.`
    : error.message.replace(error.field, name);
  return new ApiError(error.status, message);
}
