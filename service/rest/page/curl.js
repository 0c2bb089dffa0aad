import { routeUrl, hasKey } from "./api.js";
import { element } from "./element.js";

const MESSAGE_MS = 2000;

/**
 * Return a request as a shell command. If the server requires an API key, the command uses a variable for it.
 *
 * @param {string} route
 * @param {object} body
 */
export function curlOf(route, body) {
  const lines = [`curl -s ${quote(routeUrl(route))}`, "-H 'content-type: application/json'"];
  if (hasKey()) lines.push('-H "authorization: Bearer $ATTENDANT_KEY"');
  lines.push(`-d ${quote(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

/** Quote text for a shell: in single quotes, only the quote itself is special. */
function quote(/** @type {string} */ text) {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/** A shell command with a button that copies it. */
export class Curl {
  constructor() {
    this.command = element("pre", {});
    this.status = element("span", { className: "quiet", role: "status" });
    const button = element("button", { type: "button", on: { click: () => this.#copy() } }, "Copy");
    const row = element("p", { className: "actions" }, button, this.status);
    this.root = element("details", { className: "curl", hidden: true }, element("summary", {}, "Copy as curl"), this.command, row);
  }

  show(/** @type {string} */ route, /** @type {object} */ body) {
    this.command.textContent = curlOf(route, body);
    this.root.hidden = false;
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(this.command.textContent ?? "");
      this.status.textContent = "Copied.";
    } catch {
      // Browsers provide no clipboard over plain HTTP from another machine.
      getSelection()?.selectAllChildren(this.command);
      this.status.textContent = "Selected. Press Ctrl+C to copy.";
    }
    setTimeout(() => { this.status.textContent = ""; }, MESSAGE_MS);
  }
}
