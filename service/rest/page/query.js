import { call } from "./api.js";

/**
 * A debounced request to the server. A new request aborts the previous one, whose response is ignored.
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
  }

  /** Send a body after `delay` milliseconds, unless it is the current one. Null cancels the current request. */
  request(/** @type {object | null} */ body, delay = 0) {
    const serialized = body === null ? "" : JSON.stringify(body);
    if (serialized === this.current) return;
    this.current = serialized;
    this.controller.abort();
    this.controller = new AbortController();
    clearTimeout(this.timer);
    this.listeners.onBusy(body !== null);
    if (body) this.timer = setTimeout(() => this.#send(body, this.controller.signal), delay);
    else this.listeners.onError(null);
  }

  /** Forget the current request, so that it can be sent again. */
  reset() {
    this.current = "";
  }

  async #send(/** @type {object} */ body, /** @type {AbortSignal} */ signal) {
    let response;
    try {
      response = await call(this.route, body, signal);
    } catch (error) {
      if (signal.aborted) return;
      this.reset();
      this.listeners.onBusy(false);
      this.listeners.onError(/** @type {any} */ (error), body);
      return;
    }
    if (signal.aborted) return;
    this.listeners.onBusy(false);
    this.listeners.onError(null);
    this.listeners.onResponse(response, body);
  }
}
