import { createSentence, selectWords, withChoice } from "./choice.js";
import { button } from "./element.js";
import { same } from "./words.js";

/**
 * Example sentences with one word in two senses. All are written for this page.
 *
 * @typedef {{text: string, pair?: string, sense?: string}} ExampleSentence
 * @typedef {{name: string, label: string, word: string, explore?: boolean, sentences: ExampleSentence[]}} Example
 */

/** @type {Example[]} */
export const EXAMPLES = [
  {
    name: "bank", label: "bank", word: "bank", sentences: [
      { text: "He cashed a check at the bank.", sense: "A" },
      { text: "They sat on the bank of the river.", sense: "B" },
      { text: "She opened an account at the bank.", sense: "A" },
      { text: "Willows grow on the bank of a lake.", sense: "B" },
    ],
  },
  {
    name: "bat", label: "bat", word: "bat", sentences: [
      { text: "A bat flew out of the cave at dusk.", sense: "A" },
      { text: "He swung the bat and missed the ball.", sense: "B" },
      { text: "A bat hunts moths at night.", sense: "A" },
      { text: "He broke his bat in the last game.", sense: "B" },
    ],
  },
  {
    name: "crane", label: "crane", word: "crane", sentences: [
      { text: "A crane stood on one leg in the marsh.", sense: "A" },
      { text: "A crane lifted the steel beams.", sense: "B" },
      { text: "A crane waded through the reeds.", sense: "A" },
      { text: "They hired a crane to unload the ship.", sense: "B" },
    ],
  },
  {
    name: "spring", label: "spring", word: "spring", sentences: [
      { text: "The cherry trees bloom in spring.", sense: "A" },
      { text: "The spring inside the lock has broken.", sense: "B" },
      { text: "The swallows come back every spring.", sense: "A" },
      { text: "A steel spring pushes the pen back.", sense: "B" },
    ],
  },
  {
    name: "it", label: "a pronoun: it", word: "it", sentences: [
      { text: "The dog ran away because it was afraid.", sense: "A" },
      { text: "The door creaked because it was rusty.", sense: "B" },
      { text: "The horse stopped because it was tired.", sense: "A" },
      { text: "The gate squeaked because it was old.", sense: "B" },
    ],
  },
  {
    name: "pair", label: "a sentence pair", word: "bank", explore: true, sentences: [
      { text: "The bank approved her loan.", pair: "She can borrow the money." },
    ],
  },
];

/**
 * Create the sentences of an example, with its word selected.
 *
 * @param {Example} example
 * @param {number} firstId
 */
export function createExample({ word, sentences }, firstId) {
  const created = sentences.map(({ text, pair, sense }, place) => ({
    ...createSentence(firstId + place, text, pair ?? null), sense: sense ? { name: sense, word } : null,
  }));
  const selected = selectWords(created);
  if (selected.every((sentence) => sentence.word && same(sentence.word, { text: word }))) return selected;
  const place = created[0].words.find((other) => same(other, { text: word }));
  return place ? selectWords(withChoice(created, firstId, place)) : selected;
}

/** Return the example that has these texts and senses, if any. */
export function exampleOf(/** @type {import("./choice.js").Sentence[]} */ sentences) {
  const key = (/** @type {{text: string, pair?: string | null, sense?: any}} */ { text, pair, sense }) =>
    JSON.stringify([text, pair ?? null, sense?.name ?? sense ?? null]);
  return EXAMPLES.find((example) => example.sentences.map(key).join() === sentences.map(key).join());
}

/** Buttons that load examples. */
export class ExampleChips {
  constructor(/** @type {HTMLElement} */ root, /** @type {(example: Example) => void} */ onChoose) {
    this.chips = EXAMPLES.map((example) =>
      ({ example, button: button(example.label, () => onChoose(example), { className: "chip" }) }));
    root.append(...this.chips.map((chip) => chip.button));
  }

  /**
   * @param {import("./choice.js").Sentence[]} sentences
   * @param {Set<Example>} unknown examples with a word that the model does not know
   */
  show(sentences, unknown) {
    const shown = exampleOf(sentences);
    for (const { example, button: chip } of this.chips) {
      chip.setAttribute("aria-pressed", String(example === shown));
      chip.hidden = unknown.has(example);
    }
  }
}
