import { ApiError, call, withModel } from "./api.js";
import { button, element } from "./element.js";
import { wordsOf } from "./words.js";

const FIELD = /^(inputs|occurrences|queries|documents)\[(\d+)\]/;
const UNIT = / (tokens|characters)/;

/**
 * Return the item of a request that an error is about, and the list that it is in, or null.
 *
 * @param {ApiError} error
 * @param {any} request
 * @returns {{item: any, list: string} | null}
 */
export function faultyItem({ field }, request) {
  if (field === "query") return { item: request.query, list: "queries" };
  const [, list, index] = FIELD.exec(field) ?? [];
  const item = request?.[list]?.[Number(index)];
  return item === undefined ? null : { item, list };
}

/** Return the key of an input of a request: of the text of an occurrence or of an input with spans, or else of the input. */
export function inputKey(/** @type {any} */ item) {
  return JSON.stringify(item.span || item.spans ? item.text : item);
}

/** Return whether an error is about a text over a limit of tokens or characters. */
export function isTooLong(/** @type {ApiError} */ { reason }) {
  return reason === "TOO_LONG";
}

/** Return an error with the name that the page has for its input in place of the field. */
export function nameInput(/** @type {ApiError} */ error, /** @type {string} */ name) {
  if (!name) return error;
  const [, unit] = UNIT.exec(error.message) ?? [];
  const message = isTooLong(error)
    ? `${name}: too long (${error.actual} ${unit}, limit ${error.maximum}). Shorten it.`
    : error.message.replace(error.field, name);
  return new ApiError(error.status, message);
}

/**
 * Truncate an input to the limits of the server, after a whole word.
 *
 * @param {string | {text: string, pair: string}} input
 * @param {ApiError} error why the server rejected it
 * @param {{prompt?: string, prompt_name?: string, role?: string, outputs?: string[]}} options as in /v1/encode: those that decide
 *   the limit and what the server prepends
 * @returns {Promise<string[]>} the text, and the second text if the input has one
 */
export async function truncate(input, error, options) {
  const texts = typeof input === "string" ? [input] : [input.text, input.pair];
  const isCharacters = error.message.includes(" characters");
  const parts = texts.map((text) => (isCharacters ? Array.from(text).slice(0, Number(error.maximum)).join("") : text));
  const [text, pair] = parts;
  const body = { inputs: [pair === undefined ? text : { text, pair }], outputs: ["tokens"], truncation: "right", ...options };
  const { results: [result] } = await call("v1/encode", withModel(body));
  const tokens = result.tokens ?? result.multi_vector_tokens;
  return parts.map((part, segment) => {
    const end = Math.max(0, ...tokens.filter((token) => !token.special && token.segment === segment).map((token) => token.end));
    const cut = wordsOf(part).find((word) => word.start > 0 && word.start < end && end < word.end);
    return Array.from(part).slice(0, cut?.start ?? end).join("").trimEnd();
  });
}

/** The message below a field whose text is too long, and a button that truncates the text. */
export class FieldFault {
  constructor(/** @type {HTMLElement[]} */ fields, /** @type {() => void} */ onTruncate) {
    this.fields = fields;
    this.message = element("span", { id: `${fields[0].id}-fault`, role: "alert" });
    this.truncate = button("Truncate", onTruncate, { className: "small" });
    this.root = element("p", { className: "fault", hidden: true }, this.message, " ", this.truncate);
  }

  /** Show an error of the field, or none. */
  show(/** @type {ApiError | undefined} */ error, /** @type {string} */ name) {
    this.root.hidden = !error;
    const message = error ? nameInput(error, name).message : "";
    if (this.message.textContent !== message) this.message.textContent = message;
    this.truncate.setAttribute("aria-label", `Truncate ${name.toLowerCase()}`);
    for (const field of this.fields) {
      field.setAttribute("aria-invalid", String(Boolean(error)));
      if (error) field.setAttribute("aria-describedby", this.message.id);
      else field.removeAttribute("aria-describedby");
    }
  }
}
