import { copyText } from "./clipboard.js";
import { button, element } from "./element.js";

const WRITE_MS = 300; // browsers limit how often a page may change its URL

/** The link to the state of the page: the fragment of its URL, and a button that copies the link. */
export class Share {
  /**
   * @param {HTMLElement} root
   * @param {() => string | null} read returns the fragment of the current state, or null if it is too long
   */
  constructor(root, read) {
    this.read = read;
    this.timer = 0;
    this.field = element("input", { type: "text", readOnly: true, hidden: true, "aria-label": "Link to this view" });
    this.status = element("span", { className: "quiet", role: "status" });
    root.append(this.status, this.field, button("Share link", () => this.#share(), { id: "share" }));
  }

  /** Write the state to the URL soon. */
  update() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#write(), WRITE_MS);
  }

  #write() {
    clearTimeout(this.timer);
    const fragment = this.read();
    const url = `${location.pathname}${location.search}${fragment ? `#${fragment}` : ""}`;
    history.replaceState(null, "", url);
    this.field.value = location.href;
    if (fragment === null) this.field.hidden = true;
    return fragment !== null;
  }

  async #share() {
    if (!this.#write()) {
      this.status.textContent = "The texts are too long for a link.";
      return;
    }
    this.field.hidden = false;
    await copyText(this.field, this.status);
  }
}
