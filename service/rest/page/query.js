import { call, modelError, withModel } from "./api.js";
import { faultyItem, isTooLong, nameInput } from "./faults.js";

const KEPT_RESPONSES = 24;

/**
 * A debounced request to the server. A new request aborts the previous one, whose response is ignored. The last responses
 * are kept, so that the layer slider does not send the same requests again.
 */
export class Query {
  /**
   * @param {string} route
   * @param {{onBusy: (busy: boolean) => void, onResponse: (response: any, request: any) => void,
   *          onError: (error: import("./api.js").ApiError | null, request?: any) => void}} listeners
   */
  constructor(route, listeners) {
    this.route = route;
    this.listeners = listeners;
    this.current = "";
    this.timer = 0;
    this.controller = new AbortController();
    /** @type {Map<string, any>} responses by request, the oldest first */
    this.responses = new Map();
  }

  /**
   * Send a body to the selected model after `delay` milliseconds, unless it is the current one. Null cancels the current
   * request.
   */
  request(/** @type {object | null} */ body, delay = 0) {
    const serialized = body === null ? "" : JSON.stringify(withModel(body));
    // Null also removes the error of a failed request.
    if (body !== null && serialized === this.current) return;
    this.current = serialized;
    this.controller.abort();
    this.controller = new AbortController();
    clearTimeout(this.timer);
    const kept = this.responses.get(serialized);
    if (kept) return this.#receive(kept, body);
    this.listeners.onBusy(body !== null);
    if (body) this.timer = setTimeout(() => this.#send(body, serialized, this.controller.signal), delay);
    else this.listeners.onError(null);
  }

  /** Forget the current request, so that it can be sent again. */
  reset() {
    this.current = "";
  }

  async #send(/** @type {object} */ body, /** @type {string} */ serialized, /** @type {AbortSignal} */ signal) {
    let response;
    try {
      response = await call(this.route, JSON.parse(serialized), signal);
    } catch (error) {
      if (signal.aborted) return;
      this.reset();
      this.listeners.onBusy(false);
      this.listeners.onError(/** @type {any} */ (error), body);
      return;
    }
    if (signal.aborted) return;
    this.responses.set(serialized, response);
    if (this.responses.size > KEPT_RESPONSES) this.responses.delete(/** @type {string} */ (this.responses.keys().next().value));
    this.#receive(response, body);
  }

  #receive(/** @type {any} */ response, /** @type {any} */ body) {
    this.listeners.onBusy(false);
    this.listeners.onError(null);
    this.listeners.onResponse(response, body);
  }
}

/**
 * @typedef {(route: string, places: string[], listeners: {onResponse: (response: any, request: any) => void,
 *   onFailure?: (failed: boolean) => void, onBusy?: (busy: boolean) => void}) => Query} MakeQuery
 */

/**
 * Return a function that creates queries. They mark places of the page as busy, and report their errors in the notices. The
 * first place names the query, and exists only once.
 *
 * @param {import("./notices.js").Notices} notices
 * @param {{nameOf: (item: any, list: string) => string, onTooLong: (item: any, list: string, error: any) => void}} inputs
 *   `nameOf` returns the name that the page has for an item of a list of a request, or ""; `onTooLong` is called for a
 *   text over a limit: the view shows the error at its field, and sends the other texts
 * @returns {MakeQuery}
 */
export function queryMaker(notices, { nameOf, onTooLong }) {
  /** @type {Map<string, Set<string>>} pending queries by place, each by its first place */
  const pending = new Map();
  return (route, places, { onResponse, onFailure = () => {}, onBusy = () => {} }) => new Query(route, {
    onBusy: (busy) => {
      for (const place of places) {
        const queries = pending.get(place) ?? new Set();
        pending.set(place, queries);
        if (busy) queries.add(places[0]);
        else queries.delete(places[0]);
        document.querySelector(place)?.setAttribute("aria-busy", String(queries.size > 0));
      }
      onBusy(busy);
    },
    onResponse: (response, request) => {
      notices.set("described model", modelError(response));
      onResponse(response, request);
    },
    onError: (error, request) => {
      const faulty = error && faultyItem(error, request);
      const name = faulty ? nameOf(faulty.item, faulty.list) : "";
      if (faulty && name && isTooLong(error)) {
        notices.set(places[0], null);
        return onTooLong(faulty.item, faulty.list, error);
      }
      notices.set(places[0], error && nameInput(error, name));
      onFailure(error !== null);
    },
  });
}
