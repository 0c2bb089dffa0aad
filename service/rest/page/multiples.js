import { paint } from "./canvas.js";
import { element, scroller } from "./element.js";
import { decoded } from "./number.js";
import { rove } from "./roving.js";

/** Every layer and head of a sentence as small pictures; choosing one shows it large. */
export class Multiples {
  /**
   * @param {HTMLElement} root
   * @param {(layer: number, head: number) => void} onChoose
   */
  constructor(root, onChoose) {
    this.root = root;
    this.onChoose = onChoose;
    /** @type {{button: HTMLButtonElement, layer: number, head: number}[]} */
    this.entries = [];
  }

  /** @param {any} answer of POST /v1/attend, with tensors in base64 */
  show(answer, /** @type {string} */ kind) {
    const maps = answer.results[0].maps.map((map) => ({ ...map, matrix: decoded(map.matrix) }));
    const largest = maps.reduce((most, { matrix }) =>
      matrix.flat().reduce((found, value) => Math.max(found, Math.abs(value)), most), 0);
    const held = this.entries.findIndex(({ button }) => button === document.activeElement);
    this.entries = maps.map(({ layer, head, matrix }) => {
      const canvas = element("canvas", {});
      paint(canvas, matrix, largest);
      const name = `layer ${layer}, head ${head}`;
      const choose = () => this.onChoose(layer, head);
      const button = element("button", { type: "button", title: name, "aria-label": name, on: { click: choose } }, canvas);
      return { button, layer, head };
    });
    const heads = Math.max(...maps.map(({ head }) => head)) + 1;
    const rows = Array.from({ length: maps.length / heads }, (_, row) =>
      this.entries.slice(row * heads, (row + 1) * heads).map(({ button }) => button));
    const grid = element("div", { className: "multiples", role: "group", "aria-label": "Maps by layer and head" });
    grid.style.setProperty("--heads", String(heads));
    grid.append(label("head"), ...Array.from({ length: heads }, (_, head) => label(String(head))));
    rows.forEach((buttons, row) => grid.append(label(`layer ${this.entries[row * heads].layer}`), ...buttons));
    rove(grid, rows);
    this.root.replaceChildren(
      element("p", { className: "quiet" }, `A row for each layer, a column for each head, all of kind ${kind} and on one`
        + " scale. Choose one to see it above."),
      scroller("Maps by layer and head", grid),
    );
    this.entries[held]?.button.focus();
  }

  /** Mark the one that the pickers show. */
  mark(/** @type {import("./settings.js").Settings} */ { layer, head }, /** @type {boolean} */ byHead) {
    for (const entry of this.entries) {
      const chosen = byHead && String(entry.layer) === layer && String(entry.head) === head;
      entry.button.setAttribute("aria-pressed", String(chosen));
    }
  }

  /** Remove the pictures: there is no sentence for them. */
  clear() {
    this.entries = [];
    this.root.replaceChildren();
  }

  /** Instead of pictures of a long sentence, the offer to draw them. */
  offer(/** @type {() => void} */ onDraw) {
    this.entries = [];
    this.root.replaceChildren(
      element("p", { className: "quiet" }, "This sentence is long, and its maps are large."),
      element("button", { type: "button", on: { click: onDraw } }, "Draw anyway"),
    );
  }
}

function label(/** @type {string} */ text) {
  return element("span", { className: "label", "aria-hidden": "true" }, text);
}
