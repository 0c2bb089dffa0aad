import { button, element } from "./element.js";
import { FieldFault } from "./faults.js";
import { SENSES } from "./senses.js";
import { Strip } from "./strip.js";
import { describeUnread } from "./unknown.js";

/**
 * @typedef {import("./choice.js").Sentence} Sentence
 * @typedef {{map: import("./attention.js").AttentionMap | null, chosen: number, stale: boolean,
 *            note: (string | Node)[], unread: import("./unknown.js").Unread, sense: string | null, fault: import("./api.js").ApiError | undefined}} View
 *   `note` explains why no word is selected, `unread` are the words that the model does not know, `fault` why the server rejected the sentence
 * @typedef {{onText: (id: number, text: string) => void, onPair: (id: number, pair: string | null) => void,
 *            onSense: (id: number, sense: string) => void, onRemove: (id: number) => void,
 *            onTruncate: (id: number) => void, onChoose: (id: number, unit: import("./attention.js").Unit) => void}} Listeners
 */

/** The list of sentences: input fields, the words, and the largest contributions to the selected word. */
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
      const card = this.cards.get(sentence.id) ?? new Card(sentence.id, this.listeners);
      if (!this.cards.has(sentence.id)) this.root.append(card.root);
      this.cards.set(sentence.id, card);
      card.show(place + 1, sentences.length > 1, sentence, viewOf(sentence.id), sentence.id === open);
    });
  }

  focus(/** @type {number} */ id) {
    this.cards.get(id)?.input.focus();
  }
}

class Card {
  constructor(/** @type {number} */ id, /** @type {Listeners} */ { onText, onPair, onSense, onRemove, onTruncate, onChoose }) {
    this.input = field(`sentence-${id}`, "Type a sentence", (text) => onText(id, text));
    this.pair = field(`pair-${id}`, "Type a second text", (text) => onPair(id, text));
    this.number = element("span", {});
    this.label = element("label", { htmlFor: this.input.id }, "Sentence ", this.number);
    this.pairLabel = element("label", { htmlFor: this.pair.id, className: "unseen" });
    this.remove = button("Remove", () => onRemove(id), { className: "plain" });
    this.togglePair = button("", () => {
      onPair(id, this.pair.hidden ? "" : null);
      if (!this.pair.hidden) this.pair.focus();
    }, { className: "plain" });
    this.sense = element("select", { className: "plain", on: { change: () => onSense(id, this.sense.value) } },
      element("option", { value: "" }, "sense unknown"),
      ...SENSES.map((name) => element("option", { value: name }, `sense ${name}`)));
    this.line = element("p", { className: "line" });
    this.unread = element("p", { className: "quiet unread" });
    /** @type {(string | Node)[]} */
    this.note = [];
    this.strip = new Strip(
      (index) => this.map && onChoose(id, this.map.units[index]),
      (index) => this.map && this.line.replaceChildren(...(index < 0 ? this.note : [this.map.describe(index)])),
    );
    this.fault = new FieldFault([this.input, this.pair], () => onTruncate(id));
    const head = element("div", { className: "head" }, this.label, this.sense, this.togglePair, this.remove);
    this.root = element("li", { className: "sentence" }, head, this.input, this.pairLabel, this.pair, this.fault.root, this.strip.root, this.line, this.unread);
  }

  /**
   * @param {number} number
   * @param {boolean} removable
   * @param {Sentence} sentence
   * @param {View} view
   * @param {boolean} open
   */
  show(number, removable, { text, pair }, { map, chosen, stale, note, unread, sense, fault }, open) {
    this.map = map;
    this.note = note;
    // Assigning an equal value would move the caret.
    if (this.input.value !== text) this.input.value = text;
    if (this.pair.value !== (pair ?? "")) this.pair.value = pair ?? "";
    this.number.textContent = String(number);
    this.fault.show(fault, `Sentence ${number}`);
    this.pairLabel.textContent = `Second text of sentence ${number}`;
    this.pair.hidden = this.pairLabel.hidden = pair === null;
    this.togglePair.textContent = pair === null ? "Add second text" : "Remove second text";
    this.togglePair.setAttribute("aria-label", `${pair === null ? "Add second text to" : "Remove second text from"} sentence ${number}`);
    this.sense.setAttribute("aria-label", `Sense of the word in sentence ${number}`);
    this.sense.hidden = pair !== null; // pairs are not compared
    this.sense.value = sense ?? "";
    this.root.dataset.sense = sense ?? "";
    this.remove.hidden = !removable;
    this.remove.setAttribute("aria-label", `Remove sentence ${number}`);
    this.root.classList.toggle("stale", stale);
    this.root.classList.toggle("open", open);
    // Screen readers announce changes of the open sentence only.
    this.line.setAttribute("aria-live", open ? "polite" : "off");
    this.strip.root.hidden = map === null;
    this.line.hidden = map === null && !note.length;
    this.unread.replaceChildren(...describeUnread(unread));
    this.unread.hidden = !this.unread.hasChildNodes();
    if (map) this.strip.show(map, chosen, `Words of sentence ${number}`, unread.unknown);
    else this.line.replaceChildren(...note);
  }
}

function field(/** @type {string} */ id, /** @type {string} */ placeholder, /** @type {(text: string) => void} */ onText) {
  const input = element("input", {
    id, type: "text", autocomplete: "off", spellcheck: false, dir: "auto", placeholder, on: { input: () => onText(input.value) },
  });
  return input;
}
