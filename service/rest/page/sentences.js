import { element } from "./element.js";
import { Strip } from "./strip.js";

/**
 * @typedef {{id: number, text: string}} Sentence
 * @typedef {{map: import("./attention.js").AttentionMap | null, chosen: number, stale: boolean,
 *            note: (string | Node)[]}} View  `note` explains why no word is selected
 * @typedef {{onText: (id: number, text: string) => void, onRemove: (id: number) => void,
 *            onChoose: (id: number, unit: import("./attention.js").Unit) => void}} Listeners
 */

/** The list of sentences: an input field, the words, and the largest contributions to the selected word. */
export class SentenceList {
  constructor(/** @type {HTMLElement} */ root, /** @type {Listeners} */ listeners) {
    this.root = root;
    this.listeners = listeners;
    /** @type {Map<number, Card>} */
    this.cards = new Map();
  }

  /**
   * @param {Sentence[]} sentences
   * @param {(id: number) => View} viewOf
   * @param {number} open the sentence whose map is shown
   */
  show(sentences, viewOf, open) {
    for (const [id, card] of this.cards) {
      if (sentences.some((sentence) => sentence.id === id)) continue;
      card.root.remove();
      this.cards.delete(id);
    }
    sentences.forEach((sentence, place) => {
      const card = this.cards.get(sentence.id) ?? new Card(sentence, this.listeners);
      if (!this.cards.has(sentence.id)) this.root.append(card.root);
      this.cards.set(sentence.id, card);
      card.show(place + 1, sentences.length > 1, viewOf(sentence.id), sentence.id === open);
    });
  }

  focus(/** @type {number} */ id) {
    this.cards.get(id)?.input.focus();
  }
}

class Card {
  constructor(/** @type {Sentence} */ { id, text }, /** @type {Listeners} */ { onText, onRemove, onChoose }) {
    this.input = element("input", {
      id: `sentence-${id}`, type: "text", value: text, autocomplete: "off", spellcheck: false, dir: "auto",
      placeholder: "Type a sentence", on: { input: () => onText(id, this.input.value) },
    });
    this.label = element("label", { htmlFor: this.input.id });
    this.remove = element("button", { type: "button", className: "remove", on: { click: () => onRemove(id) } });
    this.remove.append("Remove");
    this.line = element("p", { className: "line" });
    /** @type {(string | Node)[]} */
    this.note = [];
    this.strip = new Strip(
      (index) => this.map && onChoose(id, this.map.units[index]),
      (index) => this.map && this.line.replaceChildren(...(index < 0 ? this.note : [this.map.describe(index)])),
    );
    const head = element("div", { className: "head" }, this.label, this.remove);
    this.root = element("li", { className: "sentence" }, head, this.input, this.strip.root, this.line);
  }

  /**
   * @param {number} number
   * @param {boolean} removable
   * @param {View} view
   * @param {boolean} open
   */
  show(number, removable, { map, chosen, stale, note }, open) {
    this.map = map;
    this.note = note;
    this.label.textContent = `Sentence ${number}`;
    this.remove.hidden = !removable;
    this.remove.setAttribute("aria-label", `Remove sentence ${number}`);
    this.root.classList.toggle("stale", stale);
    this.root.classList.toggle("open", open);
    // Screen readers announce changes of the open sentence only.
    this.line.setAttribute("aria-live", open ? "polite" : "off");
    this.strip.root.hidden = map === null;
    this.line.hidden = map === null && !note.length;
    if (map) this.strip.show(map, chosen, `Words of sentence ${number}`);
    else this.line.replaceChildren(...note);
  }
}
