import { tinted } from "./attention.js";
import { lineChart } from "./chart.js";
import { Curl } from "./curl.js";
import { element, scroller, select } from "./element.js";
import { bdi, isolated, listed, which } from "./naming.js";
import { written } from "./number.js";
import { wordsOf } from "./words.js";

const MEASURES = {
  cosine: "Cosine of the two vectors, as a search index would take it.",
  centered: "Cosine after the mean over all tokens of these sentences is taken away: what all of them share is gone.",
};

const NEAR = 80; // characters of a sentence on either side of the word

/** One word in several sentences: how alike its vectors are, layer by layer, beside the static vector. */
export class Comparison {
  constructor(/** @type {HTMLElement} */ root) {
    this.root = root;
    this.curl = new Curl();
    this.measure = "cosine";
    /** @type {number | null} */
    this.layer = null;
    this.width = 0;
    /** @type {number[]} which sentence each occurrence is in */
    this.numbers = [];
    this.note = element("p", { className: "quiet left-out" });
    new ResizeObserver(([{ contentRect }]) => {
      if (Math.abs(contentRect.width - this.width) > 8 && this.answer) this.#draw();
    }).observe(root);
  }

  /** @param {any} answer of POST /v1/compare */
  show(answer, /** @type {any} */ asked) {
    this.answer = answer;
    this.asked = asked;
    this.curl.show("v1/compare", asked);
    this.#draw();
  }

  /** There is nothing to compare, and why. */
  say(/** @type {(string | Node)[]} */ ...why) {
    this.answer = null;
    this.root.replaceChildren(element("p", { className: "quiet" }, ...why));
  }

  /**
   * Which sentences are compared, and what is said of those that are not.
   *
   * @param {number[]} numbers
   * @param {(string | Node)[]} left
   */
  about(numbers, left) {
    const moved = String(numbers) !== String(this.numbers);
    this.numbers = numbers;
    this.note.hidden = !left.length;
    this.note.replaceChildren(...left);
    if (moved && this.answer?.occurrences.length === numbers.length) this.#draw();
  }

  #draw() {
    const { occurrences, layers, static: fixed } = this.answer;
    const focused = this.root.contains(document.activeElement) ? document.activeElement?.id : "";
    this.width = this.root.clientWidth;
    const pairs = occurrences.flatMap((_, a) => occurrences.slice(a + 1).map((_, b) => [a, a + 1 + b]));
    const curves = pairs.map(([a, b]) => layers.map((layer) => layer[this.measure][a][b]));
    const mean = layers.map((_, place) => average(curves.map((values) => values[place])));
    const flat = average(pairs.map(([a, b]) => fixed[a][b]));
    const last = layers.length - 1;
    const many = pairs.length > 1;
    const spoken = `${many ? "Mean similarity" : "Similarity"} of the vectors by layer: ${written(mean[0])} at layer 0, `
      + `${written(mean[last])} at layer ${last}. The static vector stays at ${written(flat)}.`;
    const chart = lineChart(
      [
        ...(many ? curves.map((values) => ({ className: "pair", values })) : []),
        { className: "static", values: layers.map(() => flat), label: "static vector", marked: false },
        { className: "context", values: mean, label: many ? "in context, mean of all pairs" : "in context", marked: true },
      ],
      spoken, this.measure, Math.max(280, Math.min(760, this.width)),
    );
    this.root.replaceChildren(
      element("p", { className: "lead" }, ...headline(occurrences, this.numbers, mean[last], flat, last)),
      this.note,
      element("div", { className: "pickers" }, select("Measure",
        Object.keys(MEASURES).map((value) => ({ value, text: value })), this.measure,
        (measure) => { this.measure = measure; this.#draw(); }, { id: "measure", describedBy: "measure-meaning" })),
      element("p", { id: "measure-meaning", className: "quiet" }, MEASURES[this.measure]),
      element("div", { className: "beside" }, element("div", { className: "figure" }, chart),
        numbers(layers, curves, mean, flat, many)),
      ...(many ? this.#pairs(occurrences, layers) : []),
      element("h3", {}, "What each of them draws on"),
      element("ol", { className: "occurrences" }, ...occurrences.map((found, place) =>
        occurrence(found, this.asked.occurrences[place].text, this.#number(place)))),
      this.curl.root,
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  #number(/** @type {number} */ place) {
    return this.numbers[place] ?? place + 1;
  }

  /** With more than one pair: each with each, at one layer. */
  #pairs(occurrences, layers) {
    const place = Math.min(this.layer ?? layers.length - 1, layers.length - 1);
    const values = layers[place][this.measure];
    const names = occurrences.map(({ text }, index) => `${this.#number(index)} ${isolated(text)}`);
    const lowest = Math.min(...values.flat());
    const rows = values.map((row, index) => element("tr", {}, element("th", { scope: "row" }, names[index]),
      ...row.map((value) => {
        const cell = element("td", {}, written(value));
        tinted(cell, value - lowest, 1 - lowest);
        return cell;
      })));
    const table = element("table", { className: "matrix", id: "pairs" },
      element("caption", {}, `Each with each at layer ${layers[place].layer}, ${this.measure}`),
      element("thead", {}, element("tr", {}, element("td", { className: "corner" }),
        ...names.map((name) => element("th", { scope: "col" }, element("span", {}, name))))),
      element("tbody", {}, ...rows));
    return [
      element("div", { className: "pickers" }, select("Layer of the table",
        layers.map(({ layer }, index) => ({ value: String(index), text: `layer ${layer}` })), String(place),
        (layer) => { this.layer = Number(layer); this.#draw(); }, { id: "pair-layer" })),
      scroller("Each with each", table),
    ];
  }
}

function headline(occurrences, numbers, last, flat, layer) {
  const texts = [...new Set(occurrences.map(({ text }) => text.toLowerCase()))];
  const inOne = new Set(numbers).size === 1;
  const subject = texts.length === 1
    ? [element("strong", {}, bdi(texts[0])), ` in ${occurrences.length} ${inOne ? `places of sentence ${numbers[0]}` : "sentences"}`]
    : listed(texts.slice(0, 6));
  return [...subject, `: in a word list their vectors are ${flat > 0.9995 ? "the same" : `${written(flat)} alike`}; read in context, `
    + `their similarity is ${written(last)} at layer ${layer}.`];
}

/** The numbers of the chart. */
function numbers(layers, curves, mean, flat, many) {
  const names = many ? ["layer", "mean", "lowest", "highest", "static"] : ["layer", "in context", "static"];
  const rows = layers.map(({ layer }, place) => {
    const all = curves.map((values) => values[place]);
    const shown = many ? [mean[place], Math.min(...all), Math.max(...all), flat] : [mean[place], flat];
    return element("tr", {}, element("th", { scope: "row" }, String(layer)),
      ...shown.map((value) => element("td", {}, written(value))));
  });
  const table = element("table", { className: "numbers", id: "layers" },
    element("caption", {}, "The same in numbers"),
    element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows));
  return scroller("Similarity by layer", table);
}

function occurrence({ text, start, end, draws_on: draws }, /** @type {string} */ sentence, /** @type {number} */ number) {
  const words = wordsOf(sentence);
  const characters = Array.from(sentence);
  const part = (/** @type {number} */ from, /** @type {number} */ to) => characters.slice(from, to).join("");
  const largest = Math.max(...draws.map(({ share }) => share), 0);
  const bars = draws.map(({ text: word, start: from, share }) => {
    const place = words.findIndex((other) => other.start === from);
    const bar = element("span", { className: "bar" });
    bar.style.setProperty("--length", (largest ? Math.max(0, share) / largest : 0).toFixed(3));
    return element("li", {}, element("span", { className: "word" }, bdi(word), place < 0 ? "" : which(words, place)), " ", bar, " ",
      element("span", { className: "number" }, written(share)));
  });
  return element("li", { value: number },
    element("p", { className: "quote", dir: "auto" }, start > NEAR ? "…" : "", part(Math.max(0, start - NEAR), start),
      element("strong", {}, text), part(end, end + NEAR), end + NEAR < characters.length ? "…" : ""),
    element("ul", { className: "bars" }, ...bars));
}

function average(/** @type {number[]} */ values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
