import { call } from "./api.js";

/**
 * One question to the server of which only the newest counts: asking again aborts what is under way, waits until the
 * asking pauses, and an answer that comes late is dropped.
 */
export class Query {
  /**
   * @param {string} route
   * @param {{onBusy: (busy: boolean) => void, onAnswer: (answer: any, asked: any) => void,
   *          onError: (error: import("./api.js").ApiError | null, asked?: any) => void}} listeners
   */
  constructor(route, listeners) {
    this.route = route;
    this.listeners = listeners;
    this.asked = "";
    this.timer = 0;
    this.controller = new AbortController();
  }

  /** Ask after `delay` milliseconds, unless just this is asked already; null withdraws the question. */
  ask(/** @type {object | null} */ body, delay = 0) {
    const asked = body === null ? "" : JSON.stringify(body);
    if (asked === this.asked) return;
    this.asked = asked;
    this.controller.abort();
    this.controller = new AbortController();
    clearTimeout(this.timer);
    this.listeners.onBusy(body !== null);
    if (body) this.timer = setTimeout(() => this.#send(body, this.controller.signal), delay);
    else this.listeners.onError(null);
  }

  /** Forget what was asked, so that the same can be asked again. */
  forget() {
    this.asked = "";
  }

  async #send(/** @type {object} */ body, /** @type {AbortSignal} */ signal) {
    let answer;
    try {
      answer = await call(this.route, body, signal);
    } catch (error) {
      if (signal.aborted) return;
      this.forget();
      this.listeners.onBusy(false);
      this.listeners.onError(/** @type {any} */ (error), body);
      return;
    }
    if (signal.aborted) return;
    this.listeners.onBusy(false);
    this.listeners.onError(null);
    this.listeners.onAnswer(answer, body);
  }
}
