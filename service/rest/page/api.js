const KEY = "attendant-key";
export const INVALID = 422; // the status of errors of the page itself: a retry does not help

/**
 * An error of the server or the network, with the message, reason, field, maximum and actual value of the API, and the
 * seconds after which the server accepts a retry, if it names them.
 */
export class ApiError extends Error {
  constructor(
    /** @type {number} */ status,
    /** @type {string} */ message,
    /** @type {{reason?: string, field?: string | null, maximum?: number | null, actual?: number | string | null}} */ details = {},
    /** @type {number | null} */ retryAfterS = null,
  ) {
    super(message);
    this.reason = details.reason ?? "";
    this.field = details.field ?? "";
    this.maximum = details.maximum ?? null;
    this.actual = details.actual ?? null;
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

/** Return the URL of a route, also if a proxy serves the page under a path. */
export function routeUrl(/** @type {string} */ route) {
  return new URL(route, document.baseURI).href;
}

/** @type {string | null} */
let model = null;
/** The name of the model that the page describes, or "" before it knows the models. */
let described = "";

/** Select the model of the next requests by its name; null selects the default model of the server. */
export function selectModel(/** @type {string | null} */ name, /** @type {string} */ shown = "") {
  model = name;
  described = shown;
}

/** Return the error if a response is not from the model that the page describes, or null. */
export function modelError(/** @type {{model?: string}} */ response) {
  if (!described || !response.model || response.model === described) return null;
  return new ApiError(INVALID, `The server now uses model ${response.model}. Reload the page to show its description.`);
}

/**
 * Return the body of a request to the selected model.
 *
 * @template {object} T
 * @param {T} body
 * @returns {T}
 */
export function withModel(body) {
  return model === null ? body : { model, ...body };
}

/** @type {string | null} the API key, or null */
let key = null;
// Browsers deny the storage to pages that may not store anything. The page then knows the key until it is reloaded.
try {
  key = sessionStorage.getItem(KEY);
} catch {}

export function hasKey() {
  return key !== null;
}

/** Store the API key until the tab is closed. */
export function storeKey(/** @type {string} */ entered) {
  key = entered;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {}
}

/**
 * Send a request, and return the response as JSON.
 *
 * @param {string} route
 * @param {object} [body] sent with POST; without a body the method is GET
 * @param {AbortSignal} [signal]
 * @throws {ApiError}
 */
export async function call(route, body, signal) {
  /** @type {Record<string, string>} */
  const headers = key === null ? {} : { authorization: `Bearer ${utf8(key)}` };
  if (body) headers["content-type"] = "application/json";
  let response, result;
  try {
    const options = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal };
    response = await fetch(routeUrl(route), options);
    result = await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    if (response) throw new ApiError(response.status, "The response of the server is not valid JSON.");
    throw new ApiError(0, "The server cannot be reached. Check that it is running and that the network is available.");
  }
  if (response.ok) return result;
  const message = result?.error?.message ?? `The server returned status ${response.status}.`;
  throw new ApiError(response.status, message, result?.error, retryAfterS(response));
}

/** Return a text as its bytes in UTF-8, one character each: fetch rejects other characters in headers. */
function utf8(/** @type {string} */ text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

/** Return the seconds of the header Retry-After, at least 1, or null without a number. */
function retryAfterS(/** @type {Response} */ response) {
  const header = response.headers.get("retry-after");
  return header !== null && /^\d+$/.test(header) ? Math.max(1, Number(header)) : null;
}
