import { applyTint } from "./attention.js";
import { element } from "./element.js";
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
    this.root = element("div", { className: "strip", role: "group" });
    this.root.addEventListener("pointerleave", () => this.#inspect(this.chosen));
    this.root.addEventListener("focusout", (event) => {
      if (!this.root.contains(/** @type {Node} */ (event.relatedTarget))) this.#inspect(this.chosen);
    });
    this.rendered = "";
    this.chosen = -1;
    /** @type {HTMLButtonElement[]} */
    this.buttons = [];
  }

  /**
   * @param {import("./attention.js").AttentionMap} map
   * @param {number} chosen
   * @param {string} name
   */
  show(map, chosen, name) {
    this.map = map;
    this.chosen = chosen;
    this.root.setAttribute("aria-label", name);
    const rendered = JSON.stringify(map.units.map(({ text, start }) => [text, start]));
    if (rendered !== this.rendered) this.#build(map.units);
    this.rendered = rendered;
    this.buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === chosen)));
    const focused = this.buttons.indexOf(/** @type {any} */ (document.activeElement));
    this.#inspect(focused < 0 ? chosen : focused);
  }

  #build(/** @type {import("./attention.js").Unit[]} */ units) {
    this.buttons = units.map((unit, index) => {
      return element(
        "button",
        {
          type: "button",
          className: unit.special ? "unit special" : "unit",
          on: {
            click: () => this.onChoose(index),
            focus: () => this.#inspect(index),
            pointerenter: () => this.#inspect(index),
          },
        },
        element("span", { className: "text" }, unit.text),
        " ",
        element("span", { className: "value" }),
      );
    });
    // Units without a space between them stay on one line: punctuation, tokens of a word.
    /** @type {HTMLElement[]} */
    const runs = [];
    units.forEach((unit, index) => {
      const before = units[index - 1];
      const joined = before && !before.special && !unit.special && before.end === unit.start;
      if (!joined) runs.push(element("span", { className: "run" }));
      runs[runs.length - 1].append(this.buttons[index]);
    });
    const row = element("div", { className: "units", dir: "auto" }, ...runs);
    rove(row, [this.buttons], [0, Math.max(0, this.chosen)]);
    this.root.replaceChildren(row);
  }

  #inspect(/** @type {number} */ index) {
    if (!this.map) return;
    const contributions = index < 0 ? [] : this.map.contributionsOf(index);
    const largest = Math.max(0, ...contributions.map(({ value }) => Math.abs(value)));
    const values = new Map(contributions.map((contribution) => [contribution.index, contribution.value]));
    this.buttons.forEach((button, position) => {
      const value = values.get(position);
      button.classList.toggle("subject", position === index);
      applyTint(button, value ?? 0, largest);
      /** @type {HTMLElement} */ (button.lastElementChild).textContent = value === undefined ? "" : formatNumber(value);
    });
    this.onInspect(index);
  }
}
