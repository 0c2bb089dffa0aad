import { hasKey, keepKey } from "./api.js";
import { element } from "./element.js";

const MENDED_BY_TYPING = [413, 422];
const CLEAR_PX = 40; // room for the label above a field

/** What went wrong, in sentences, each once; and the question for the key. */
export class Notices {
  /**
   * @param {HTMLElement} root
   * @param {() => void} onRetry
   */
  constructor(root, onRetry) {
    this.root = root;
    this.onRetry = onRetry;
    /** @type {Map<string, import("./api.js").ApiError>} */
    this.errors = new Map();
    this.shown = "";
  }

  /** An error of one of the questions that the page asks, or null when it went well. */
  set(/** @type {string} */ source, /** @type {import("./api.js").ApiError | null} */ error) {
    if (error) this.errors.set(source, error);
    else this.errors.delete(source);
    const errors = [...this.errors.values()];
    const messages = [...new Set(errors.map(({ message }) => message))];
    const wantsKey = errors.some(({ status }) => status === 401);
    const shown = JSON.stringify([messages, wantsKey, wantsKey && hasKey()]);
    if (shown === this.shown) return;
    this.shown = shown;
    if (wantsKey) this.#askForKey();
    else this.root.replaceChildren(...(messages.length ? [this.#card(messages, errors)] : []));
    // Once the browser has kept what is read in its place: what is typed in must not lie under the card.
    requestAnimationFrame(() => requestAnimationFrame(() => this.#uncover()));
  }

  #uncover() {
    const field = document.activeElement;
    if (!this.root.firstElementChild || !field || field === document.body || this.root.contains(field)) return;
    const { bottom } = this.root.getBoundingClientRect();
    const place = field.getBoundingClientRect();
    if (place.bottom > 0 && place.top < bottom + CLEAR_PX) scrollBy({ top: place.top - bottom - CLEAR_PX, behavior: "instant" });
  }

  #card(/** @type {string[]} */ messages, /** @type {import("./api.js").ApiError[]} */ errors) {
    const helps = errors.some(({ status }) => !MENDED_BY_TYPING.includes(status));
    const again = element("button", { type: "button", on: { click: this.onRetry } }, "Try again");
    return element(
      "div",
      { className: "card", role: "alert" },
      ...messages.map((message) => element("p", {}, message)),
      helps && element("p", { className: "actions" }, again),
    );
  }

  #askForKey() {
    const said = hasKey() ? "Invalid API key." : "This server requires an API key.";
    const input = element("input", { id: "key", type: "password", autocomplete: "off", required: true, "aria-describedby": "key-use" });
    const submit = (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      keepKey(input.value.trim());
      this.onRetry();
    };
    this.root.replaceChildren(
      element(
        "div",
        { className: "card" },
        element("p", { role: "alert" }, said),
        element(
          "form",
          { on: { submit } },
          element("label", { htmlFor: "key" }, "API key"),
          input,
          element("button", { type: "submit" }, "Use this key"),
        ),
        element("p", { id: "key-use", className: "quiet" }, "Kept in this tab only, until you close it."),
      ),
    );
    input.focus();
  }
}
