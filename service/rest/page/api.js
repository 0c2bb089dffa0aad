const KEY = "attendant-key";

/** What the server, or the way to it, had to say instead of an answer; `message` is a sentence for people. */
export class ApiError extends Error {
  constructor(/** @type {number} */ status, /** @type {string} */ message) {
    super(message);
    this.status = status;
  }
}

/** Where a route is, also when the page is served under a path of somebody's proxy. */
export function address(/** @type {string} */ route) {
  return new URL(route, document.baseURI).href;
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

/** Kept for as long as this tab is open, and nowhere else. */
export function keepKey(/** @type {string} */ key) {
  sessionStorage.setItem(KEY, key);
}

/**
 * The answer of a route as JSON.
 *
 * @param {string} route
 * @param {object} [body] sent with POST; without one it is a GET
 * @param {AbortSignal} [signal]
 * @throws {ApiError}
 */
export async function call(route, body, signal) {
  const key = sessionStorage.getItem(KEY);
  /** @type {Record<string, string>} */
  const headers = key === null ? {} : { authorization: `Bearer ${key}` };
  if (body) headers["content-type"] = "application/json";
  let response, answer;
  try {
    const sent = body && JSON.stringify(body);
    response = await fetch(address(route), { method: body ? "POST" : "GET", headers, body: sent, signal });
    answer = await response.json();
  } catch (fault) {
    if (signal?.aborted) throw fault;
    if (response) throw new ApiError(response.status, "The server's answer could not be read.");
    throw new ApiError(0, "The server cannot be reached. Is it running, and is the network there?");
  }
  if (response.ok) return answer;
  throw new ApiError(response.status, sentence(response, answer?.error?.message));
}

function sentence(/** @type {Response} */ response, /** @type {string | undefined} */ message) {
  const said = message ?? `The server answered with status ${response.status}.`;
  const wait = response.status === 429 && Number(response.headers.get("retry-after"));
  if (!wait) return said;
  return `${said} Try again in ${wait} ${wait === 1 ? "second" : "seconds"}.`;
}
