import { paint } from "./canvas.js";
import { button, element, scroller, select } from "./element.js";
import { heatmapFigure } from "./figure.js";
import { ROLES, THRESHOLD } from "./heads.js";
import { decodeTensor, formatNumber } from "./number.js";
import { rove } from "./roving.js";

const ENLARGED_CELL = 20; // pixels
const ENLARGED_SIDE = 340; // pixels
const SCALES = { shared: "shared by all heads", head: "per head" };

/**
 * Small multiples: one thumbnail per layer and head of a sentence. Selecting a thumbnail shows its map. The thumbnail
 * under the pointer or with the focus is enlarged.
 */
export class Multiples {
  /**
   * @param {HTMLElement} root
   * @param {(layer: number, head: number) => void} onChoose
   */
  constructor(root, onChoose) {
    this.root = root;
    this.onChoose = onChoose;
    this.scale = "shared";
    this.kind = "";
    /** @type {Map<string, import("./heads.js").Role> | null} null if they are unknown */
    this.roles = null;
    /** @type {{button: HTMLButtonElement, canvas: HTMLCanvasElement, symbol: HTMLElement, layer: number, head: number, matrix: number[][]}[]} */
    this.entries = [];
    this.hasHeads = true;
    this.caption = element("p", { className: "quiet" });
    this.legend = element("p", { className: "quiet legend" });
    this.enlarged = element("div", { className: "enlarged", "aria-hidden": "true", hidden: true });
    addEventListener("keydown", ({ key }) => { if (key === "Escape") this.#enlarge(null); });
  }

  /** @param {any} response of POST /v1/attend, with tensors in base64 */
  show(response, /** @type {string} */ kind) {
    const [{ units, rows, columns, maps }] = response.results;
    this.names = { rows: rows.map((place) => units[place].text), columns: columns.map((place) => units[place].text) };
    this.kind = kind;
    const focused = this.entries.findIndex((entry) => entry.button === document.activeElement);
    this.entries = maps.map(({ layer, head, matrix }) => this.#entry(layer, head, decodeTensor(matrix)));
    this.largest = largestOf(this.entries.flatMap(({ matrix }) => matrix));
    const heads = Math.max(...maps.map(({ head }) => head)) + 1;
    const lines = Array.from({ length: maps.length / heads }, (_, row) =>
      this.entries.slice(row * heads, (row + 1) * heads).map((entry) => entry.button));
    const grid = element("div", { className: "multiples", role: "group", "aria-label": "Maps by layer and head" });
    grid.style.setProperty("--heads", String(heads));
    grid.append(label("head"), ...Array.from({ length: heads }, (_, head) => label(String(head))));
    lines.forEach((buttons, row) => grid.append(label(`layer ${this.entries[row * heads].layer}`), ...buttons));
    rove(grid, lines);
    grid.addEventListener("pointerleave", () => this.#enlarge(null));
    grid.addEventListener("focusout", () => this.#enlarge(null));
    this.root.replaceChildren(
      element("div", { className: "pickers" }, select("Color scale",
        Object.entries(SCALES).map(([value, text]) => ({ value, text })), this.scale,
        (scale) => { this.scale = scale; this.#paint(); }, { id: "scale-of-heads" })),
      this.caption,
      scroller("Maps by layer and head", grid), this.legend, this.enlarged,
    );
    this.setHasHeads(this.hasHeads);
    this.#paint();
    this.nameHeads(this.roles);
    this.entries[focused]?.button.focus();
  }

  /** Set whether the selected kind has one map per head. Otherwise the thumbnails are those of another kind. */
  setHasHeads(/** @type {boolean} */ hasHeads) {
    this.hasHeads = hasHeads;
    this.caption.textContent = `One map per layer and head, for kind ${this.kind}. Select a map to show it with its values.`
      + (hasHeads ? "" : " The selected kind has no maps per head.");
  }

  #entry(/** @type {number} */ layer, /** @type {number} */ head, /** @type {number[][]} */ matrix) {
    const canvas = element("canvas", {});
    const symbol = element("span", { className: "symbol", "aria-hidden": "true" });
    const chip = button("", () => this.onChoose(layer, head));
    chip.append(canvas, symbol);
    const entry = { button: chip, canvas, symbol, layer, head, matrix };
    chip.addEventListener("pointerenter", () => this.#enlarge(entry));
    chip.addEventListener("focus", () => this.#enlarge(entry));
    return entry;
  }

  #paint() {
    for (const { canvas, matrix } of this.entries) paint(canvas, matrix, this.#scaleOf(matrix));
  }

  #scaleOf(/** @type {number[][]} */ matrix) {
    return this.scale === "head" ? largestOf(matrix) : this.largest ?? 0;
  }

  /** Show a thumbnail with labels beside the grid. */
  #enlarge(/** @type {typeof this.entries[number] | null} */ entry) {
    this.enlarged.hidden = entry === null;
    if (!entry || !this.names) return;
    const { rows, columns } = this.names;
    const cell = Math.max(2, Math.min(ENLARGED_CELL, ENLARGED_SIDE / Math.max(rows.length, columns.length)));
    const title = this.#nameOf(entry);
    this.enlarged.replaceChildren(
      heatmapFigure({ title, rows, columns, values: entry.matrix, largest: this.#scaleOf(entry.matrix), cell }));
    const place = this.root.getBoundingClientRect();
    const at = entry.button.getBoundingClientRect();
    const size = this.enlarged.getBoundingClientRect();
    const left = Math.max(0, Math.min(at.right - place.left + 8, document.documentElement.clientWidth - place.left - size.width - 8));
    const above = at.bottom + size.height + 8 > innerHeight && at.top > size.height;
    this.enlarged.style.setProperty("--left", `${left}px`);
    this.enlarged.style.setProperty("--top", `${above ? at.top - place.top - size.height - 8 : at.bottom - place.top + 8}px`);
  }

  #nameOf(/** @type {{layer: number, head: number}} */ { layer, head }) {
    const role = this.roles?.get(`${layer}.${head}`);
    return `layer ${layer}, head ${head}${role ? `: ${ROLES[role.role].name} ${formatNumber(role.value)}` : ""}`;
  }

  /** Name the heads by what they do; null removes their names. */
  nameHeads(/** @type {Map<string, import("./heads.js").Role> | null} */ roles) {
    this.roles = roles;
    const counts = new Map();
    for (const entry of this.entries) {
      const role = roles?.get(`${entry.layer}.${entry.head}`)?.role;
      if (role) counts.set(role, (counts.get(role) ?? 0) + 1);
      entry.symbol.textContent = role ? ROLES[role].symbol : "";
      entry.button.setAttribute("aria-label", this.#nameOf(entry));
    }
    const named = Object.entries(ROLES).filter(([role]) => counts.has(role));
    const meaning = named.length
      ? `A symbol marks a head whose mean attention weight on such tokens is at least ${formatNumber(THRESHOLD)} in these sentences. `
      : roles && `No head is named: none puts a mean weight of ${formatNumber(THRESHOLD)} or more on the previous, next, first, separator or same token.`;
    this.legend.replaceChildren(meaning ?? "", ...named.flatMap(([role, { symbol, tokens }], place) => [
      place ? ", " : "", element("span", { className: "symbol" }, symbol),
      ` ${tokens} (${counts.get(role)} ${counts.get(role) === 1 ? "head" : "heads"})`]), named.length ? "." : "");
  }

  /** Mark the thumbnail of the selected layer and head. */
  mark(/** @type {number | null} */ layer, /** @type {number | null} */ head) {
    for (const entry of this.entries) {
      entry.button.setAttribute("aria-pressed", String(entry.layer === layer && entry.head === head));
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
      button("Draw anyway", onDraw),
    );
  }
}

function largestOf(/** @type {number[][]} */ matrix) {
  return matrix.reduce((outer, row) => row.reduce((inner, value) => Math.max(inner, Math.abs(value)), outer), 0);
}

function label(/** @type {string} */ text) {
  return element("span", { className: "label", "aria-hidden": "true" }, text);
}
