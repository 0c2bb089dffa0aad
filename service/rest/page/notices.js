import { hasKey, storeKey } from "./api.js";
import { element } from "./element.js";

const INPUT_ERRORS = [413, 422];
const TOO_MANY = 429;
const UNAVAILABLE = [0, 502, 503, 504]; // network errors, and servers or proxies during a restart
const UNAVAILABLE_RETRY_S = 3;
const LONGEST_RETRY_S = 60;
const CLEAR_PX = 40; // space for the label above a field

/** The card with error messages, and the form for the API key. */
export class Notices {
  /**
   * @param {HTMLElement} root
   * @param {() => void} onRetry
   */
  constructor(root, onRetry) {
    this.root = root;
    this.onRetry = onRetry;
    /** @type {Map<string, {error: import("./api.js").ApiError, retry: () => void}>} */
    this.failures = new Map();
    this.shown = "";
    this.timer = 0;
  }

  /**
   * Set the error of a request, or null after its success.
   *
   * @param {string} source
   * @param {import("./api.js").ApiError | null} error
   * @param {() => void} [retry] sends the request again
   */
  set(source, error, retry = this.onRetry) {
    if (error) this.failures.set(source, { error, retry });
    else this.failures.delete(source);
    const errors = [...this.failures.values()].map((failure) => failure.error);
    this.#scheduleRetry(errors);
    const messages = [...new Set(errors.map(describe))];
    const needsKey = errors.some(({ status }) => status === 401);
    const shown = JSON.stringify([messages, needsKey, needsKey && hasKey()]);
    if (shown === this.shown) return;
    this.shown = shown;
    if (needsKey) this.#askForKey();
    else this.root.replaceChildren(...(messages.length ? [this.#card(messages, errors)] : []));
    // After the browser has restored the scroll position: the card must not cover the focused field.
    requestAnimationFrame(() => requestAnimationFrame(() => this.#uncover()));
  }

  /** Send the requests again once the server is available, or has room for them. */
  #scheduleRetry(/** @type {import("./api.js").ApiError[]} */ errors) {
    clearTimeout(this.timer);
    const delays = errors.flatMap((error) => retryDelayS(error) ?? []);
    if (delays.length) this.timer = setTimeout(() => this.#retry(), 1000 * Math.max(...delays));
  }

  #retry() {
    const retries = [...this.failures.values()].map(({ retry }) => retry);
    for (const retry of new Set([this.onRetry, ...retries])) retry();
  }

  #uncover() {
    const field = document.activeElement;
    if (!this.root.firstElementChild || !field || field === document.body || this.root.contains(field)) return;
    const { bottom } = this.root.getBoundingClientRect();
    const place = field.getBoundingClientRect();
    if (place.bottom > 0 && place.top < bottom + CLEAR_PX) scrollBy({ top: place.top - bottom - CLEAR_PX, behavior: "instant" });
  }

  #card(/** @type {string[]} */ messages, /** @type {import("./api.js").ApiError[]} */ errors) {
    const canRetry = errors.some(({ status }) => !INPUT_ERRORS.includes(status));
    const again = element("button", { type: "button", on: { click: () => this.#retry() } }, "Try again");
    return element(
      "div",
      { className: "card", role: "alert" },
      ...messages.map((message) => element("p", {}, message)),
      canRetry && element("p", { className: "actions" }, again),
    );
  }

  #askForKey() {
    const message = hasKey() ? "Invalid API key." : "This server requires an API key.";
    const input = element("input", { id: "key", type: "password", autocomplete: "off", required: true, "aria-describedby": "key-use" });
    const submit = (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      storeKey(input.value.trim());
      // Remove the form. If this key is invalid, too, it appears again, empty and with the focus.
      for (const [source, { error }] of this.failures) if (error.status === 401) this.set(source, null);
      this.onRetry();
    };
    this.root.replaceChildren(
      element(
        "div",
        { className: "card" },
        element("p", { role: "alert" }, message),
        element(
          "form",
          { on: { submit } },
          element("label", { htmlFor: "key" }, "API key"),
          input,
          element("button", { type: "submit" }, "Use this key"),
        ),
        element("p", { id: "key-use", className: "quiet" }, "Stored in this tab until you close it."),
      ),
    );
    input.focus();
  }
}

/** Return after how many seconds the page sends a failed request again, or null if it waits for the user. */
function retryDelayS(/** @type {import("./api.js").ApiError} */ { status, retryAfterS }) {
  if (retryAfterS !== null) return retryAfterS <= LONGEST_RETRY_S ? retryAfterS : null;
  return UNAVAILABLE.includes(status) ? UNAVAILABLE_RETRY_S : null;
}

/** Return the message of an error, with the delay before the next attempt if the server is busy. */
function describe(/** @type {import("./api.js").ApiError} */ { status, message, retryAfterS: delay }) {
  if (status !== TOO_MANY || !delay) return message;
  const seconds = `${delay} ${delay === 1 ? "second" : "seconds"}`;
  return `${message.replace(/ Retry later\.$/, "")} ${delay <= LONGEST_RETRY_S ? "The page tries again" : "Try again"} in ${seconds}.`;
}
