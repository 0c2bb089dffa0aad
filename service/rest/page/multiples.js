import { paint } from "./canvas.js";
import { element, scroller } from "./element.js";
import { decodeTensor } from "./number.js";
import { rove } from "./roving.js";

/** Small multiples: one thumbnail per layer and head of a sentence. Selecting a thumbnail shows its map. */
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

  /** @param {any} response of POST /v1/attend, with tensors in base64 */
  show(response, /** @type {string} */ kind) {
    const maps = response.results[0].maps.map((map) => ({ ...map, matrix: decodeTensor(map.matrix) }));
    const largest = maps.reduce((outer, { matrix }) =>
      matrix.flat().reduce((inner, value) => Math.max(inner, Math.abs(value)), outer), 0);
    const focused = this.entries.findIndex(({ button }) => button === document.activeElement);
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
      element("p", { className: "quiet" }, `One row per layer and one column per head, for kind ${kind}, on a common scale.`
        + " Select a map to show it above."),
      scroller("Maps by layer and head", grid),
    );
    this.entries[focused]?.button.focus();
  }

  /** Mark the thumbnail of the selected layer and head. */
  mark(/** @type {import("./settings.js").Settings} */ { layer, head }, /** @type {boolean} */ byHead) {
    for (const entry of this.entries) {
      const chosen = byHead && String(entry.layer) === layer && String(entry.head) === head;
      entry.button.setAttribute("aria-pressed", String(chosen));
    }
  }

  /** Remove the thumbnails. */
  clear() {
    this.entries = [];
    this.root.replaceChildren();
  }

  /** Show a button that draws the thumbnails of a long sentence. */
  offer(/** @type {() => void} */ onDraw) {
    this.entries = [];
    this.root.replaceChildren(
      element("p", { className: "quiet" }, "This sentence is long and has large maps."),
      element("button", { type: "button", on: { click: onDraw } }, "Draw anyway"),
    );
  }
}

function label(/** @type {string} */ text) {
  return element("span", { className: "label", "aria-hidden": "true" }, text);
}
