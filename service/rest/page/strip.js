import { applyTint } from "./attention.js";
import { element } from "./element.js";
import { Links } from "./links.js";
import { unitText } from "./naming.js";
import { formatNumber } from "./number.js";
import { rove } from "./roving.js";

/** The units of a sentence as buttons, tinted by their contributions to the inspected unit. */
export class Strip {
  /**
   * @param {(index: number) => void} onChoose called when a unit is selected
   * @param {(index: number) => void} onInspect called with the hovered, focused or selected unit, or -1
   */
  constructor(onChoose, onInspect) {
    this.onChoose = onChoose;
    this.onInspect = onInspect;
    this.links = new Links();
    this.root = element("div", { className: "strip", role: "group" });
    this.root.addEventListener("pointerleave", () => this.#leave());
    this.root.addEventListener("focusout", (event) => {
      if (!this.root.contains(/** @type {Node} */ (event.relatedTarget))) this.#leave();
    });
    this.rendered = "";
    this.chosen = -1;
    this.pointed = -1; // unit under the pointer or with the focus
    /** @type {HTMLButtonElement[]} */
    this.buttons = [];
  }

  /**
   * @param {import("./attention.js").AttentionMap} map
   * @param {number} chosen
   * @param {string} name
   * @param {import("./choice.js").SegmentWord[]} unknown words that the model does not know
   */
  show(map, chosen, name, unknown) {
    this.map = map;
    this.chosen = chosen;
    this.root.setAttribute("aria-label", name);
    const rendered = JSON.stringify(map.units.map(({ text, start, segment }) => [text, start, segment]));
    if (rendered !== this.rendered) this.#build(map.units);
    this.rendered = rendered;
    this.buttons.forEach((button, index) => {
      const { start, end, segment, special } = map.units[index];
      button.setAttribute("aria-pressed", String(index === chosen));
      const isUnknown = !special && unknown.some((word) => word.segment === segment && word.start < end && word.end > start);
      button.classList.toggle("unknown", isUnknown);
      button.title = isUnknown ? "unknown to the model" : "";
    });
    const focused = this.buttons.indexOf(/** @type {any} */ (document.activeElement));
    if (focused >= 0 || this.pointed >= this.buttons.length) this.pointed = focused;
    this.#inspect();
  }

  #build(/** @type {import("./attention.js").Unit[]} */ units) {
    this.pointed = -1;
    this.buttons = units.map((unit, index) => {
      const point = () => { this.pointed = index; this.#inspect(); };
      return element(
        "button",
        {
          type: "button",
          className: unit.special ? "unit special" : "unit",
          on: { click: () => this.onChoose(index), focus: point, pointerenter: point },
        },
        element("span", { className: "text" }, unitText(unit)),
        " ",
        element("span", { className: "value" }),
      );
    });
    const segments = [...new Set(units.map(({ segment }) => segment))];
    const grid = segments.map((segment) => this.buttons.filter((_, index) => units[index].segment === segment));
    const lines = segments.map((segment) => this.#line(units, segment));
    const line = Math.max(0, grid.findIndex((buttons) => buttons.includes(this.buttons[this.chosen])));
    const box = element("div", {}, ...lines);
    if (grid.length) rove(box, grid, [line, Math.max(0, grid[line].indexOf(this.buttons[this.chosen]))]);
    this.root.replaceChildren(box, this.links.root);
  }

  /** Create a line of buttons. Units without a space between them stay together: punctuation, tokens of a word. */
  #line(/** @type {import("./attention.js").Unit[]} */ units, /** @type {number} */ segment) {
    /** @type {HTMLElement[]} */
    const runs = [];
    units.forEach((unit, index) => {
      if (unit.segment !== segment) return;
      const before = units[index - 1];
      const joined = runs.length && before && !before.special && !unit.special && before.end === unit.start;
      if (!joined) runs.push(element("span", { className: "run" }));
      runs[runs.length - 1].append(this.buttons[index]);
    });
    return element("div", { className: "units", dir: "auto" }, ...runs);
  }

  #leave() {
    this.pointed = -1;
    this.#inspect();
  }

  #inspect() {
    if (!this.map) return;
    const index = this.pointed < 0 ? this.chosen : this.pointed;
    const contributions = index < 0 ? [] : this.map.contributionsOf(index);
    const largest = Math.max(0, ...contributions.map(({ value }) => Math.abs(value)));
    const values = new Map(contributions.map((contribution) => [contribution.index, contribution.value]));
    this.buttons.forEach((button, position) => {
      const value = values.get(position);
      button.classList.toggle("subject", position === index);
      applyTint(button, value ?? 0, largest);
      /** @type {HTMLElement} */ (button.lastElementChild).textContent = value === undefined ? "" : formatNumber(value);
    });
    if (this.pointed < 0) this.links.clear();
    else this.links.draw(this.buttons, index, contributions);
    this.onInspect(index);
  }
}
