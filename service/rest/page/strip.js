import { tinted } from "./attention.js";
import { element } from "./element.js";
import { written } from "./number.js";
import { rove } from "./roving.js";

/** The units of a sentence as buttons, each tinted by what the unit that is looked at draws from it. */
export class Strip {
  /**
   * @param {(index: number) => void} onChoose a unit was chosen
   * @param {(index: number) => void} onLook a unit is pointed at or focused; when that is over the chosen one, or -1
   */
  constructor(onChoose, onLook) {
    this.onChoose = onChoose;
    this.onLook = onLook;
    this.root = element("div", { className: "strip", role: "group" });
    this.root.addEventListener("pointerleave", () => this.#look(this.chosen));
    this.root.addEventListener("focusout", (event) => {
      if (!this.root.contains(/** @type {Node} */ (event.relatedTarget))) this.#look(this.chosen);
    });
    this.spelled = "";
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
    const spelled = JSON.stringify(map.units.map(({ text, start }) => [text, start]));
    if (spelled !== this.spelled) this.#build(map.units);
    this.spelled = spelled;
    this.buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === chosen)));
    const held = this.buttons.indexOf(/** @type {any} */ (document.activeElement));
    this.#look(held < 0 ? chosen : held);
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
            focus: () => this.#look(index),
            pointerenter: () => this.#look(index),
          },
        },
        element("span", { className: "text" }, unit.text),
        " ",
        element("span", { className: "value" }),
      );
    });
    // What has no space between stays together on a line: a full stop, the pieces of a word.
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

  #look(/** @type {number} */ index) {
    if (!this.map) return;
    const draws = index < 0 ? [] : this.map.drawsOf(index);
    const largest = Math.max(0, ...draws.map(({ value }) => Math.abs(value)));
    const values = new Map(draws.map((draw) => [draw.index, draw.value]));
    this.buttons.forEach((button, place) => {
      const value = values.get(place);
      button.classList.toggle("subject", place === index);
      tinted(button, value ?? 0, largest);
      /** @type {HTMLElement} */ (button.lastElementChild).textContent = value === undefined ? "" : written(value);
    });
    this.onLook(index);
  }
}
