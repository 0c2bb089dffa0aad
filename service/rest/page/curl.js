import { address, hasKey } from "./api.js";
import { element } from "./element.js";

const SAID_MS = 2000;

/**
 * The request as a command for a shell. The key is never in it: where one is needed, a variable holds its place.
 *
 * @param {string} route
 * @param {object} body
 */
export function curlOf(route, body) {
  const lines = [`curl -s ${quoted(address(route))}`, "-H 'content-type: application/json'"];
  if (hasKey()) lines.push('-H "authorization: Bearer $ATTENDANT_KEY"');
  lines.push(`-d ${quoted(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

/** In single quotes nothing means anything to a shell but the quote itself. */
function quoted(/** @type {string} */ text) {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/** A command to look at and to copy. */
export class Curl {
  constructor() {
    this.command = element("pre", {});
    this.said = element("span", { className: "quiet", role: "status" });
    const button = element("button", { type: "button", on: { click: () => this.#copy() } }, "Copy");
    const row = element("p", { className: "actions" }, button, this.said);
    this.root = element("details", { className: "curl", hidden: true }, element("summary", {}, "Copy as curl"), this.command, row);
  }

  show(/** @type {string} */ route, /** @type {object} */ body) {
    this.command.textContent = curlOf(route, body);
    this.root.hidden = false;
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(this.command.textContent ?? "");
      this.said.textContent = "Copied.";
    } catch {
      // Over plain HTTP from another machine there is no clipboard; the selection is one key away from it.
      getSelection()?.selectAllChildren(this.command);
      this.said.textContent = "Selected: copy it with Ctrl+C.";
    }
    setTimeout(() => { this.said.textContent = ""; }, SAID_MS);
  }
}
