import { applyTint } from "./attention.js";
import { lineChart } from "./chart.js";
import { Curl } from "./curl.js";
import { element, scroller, select } from "./element.js";
import { bdi, isolated, joinWords, ordinal } from "./naming.js";
import { formatNumber } from "./number.js";
import { wordsOf } from "./words.js";

const MEASURES = {
  cosine: "Cosine similarity of the vectors, as in a search index.",
  centered: "Cosine similarity after subtracting the mean over all tokens of these sentences.",
};

const CONTEXT_CHARACTERS = 80; // characters of a sentence before and after the word

/** Similarity of the vectors of one word in several sentences, per layer, with that of the static vectors. */
export class Comparison {
  constructor(/** @type {HTMLElement} */ root) {
    this.root = root;
    this.curl = new Curl();
    this.measure = "cosine";
    /** @type {number | null} */
    this.layer = null;
    this.width = 0;
    /** @type {number[]} sentence number per occurrence */
    this.numbers = [];
    this.note = element("p", { className: "quiet left-out" });
    new ResizeObserver(([{ contentRect }]) => {
      if (Math.abs(contentRect.width - this.width) > 8 && this.response) this.#draw();
    }).observe(root);
  }

  /** @param {any} response of POST /v1/compare */
  show(response, /** @type {any} */ request) {
    this.response = response;
    this.request = request;
    this.curl.show("v1/compare", request);
    this.#draw();
  }

  /** Show why there is no comparison. */
  showMessage(/** @type {(string | Node)[]} */ ...message) {
    this.response = null;
    this.root.replaceChildren(element("p", { className: "quiet" }, ...message));
  }

  /**
   * Set the compared sentences, and a note about the others.
   *
   * @param {number[]} numbers
   * @param {(string | Node)[]} note
   */
  setSentences(numbers, note) {
    const changed = String(numbers) !== String(this.numbers);
    this.numbers = numbers;
    this.note.hidden = !note.length;
    this.note.replaceChildren(...note);
    if (changed && this.response?.occurrences.length === numbers.length) this.#draw();
  }

  #draw() {
    const { occurrences, layers, static: staticSimilarity } = this.response;
    const focused = this.root.contains(document.activeElement) ? document.activeElement?.id : "";
    this.width = this.root.clientWidth;
    const pairs = occurrences.flatMap((_, a) => occurrences.slice(a + 1).map((_, b) => [a, a + 1 + b]));
    const curves = pairs.map(([a, b]) => layers.map((layer) => layer[this.measure][a][b]));
    const mean = layers.map((_, place) => average(curves.map((values) => values[place])));
    const staticMean = average(pairs.map(([a, b]) => staticSimilarity[a][b]));
    const last = layers.length - 1;
    const many = pairs.length > 1;
    const description = `${many ? "Mean similarity" : "Similarity"} of the vectors by layer: ${formatNumber(mean[0])} at layer 0, `
      + `${formatNumber(mean[last])} at layer ${last}. For the static vectors it is ${formatNumber(staticMean)}.`;
    const chart = lineChart(
      [
        ...(many ? curves.map((values) => ({ className: "pair", values })) : []),
        { className: "static", values: layers.map(() => staticMean), label: "static vector", marked: false },
        { className: "context", values: mean, label: many ? "in context, mean of all pairs" : "in context", marked: true },
      ],
      description, this.measure, Math.max(280, Math.min(760, this.width)),
    );
    this.root.replaceChildren(
      element("p", { className: "lead" }, ...headline(occurrences, this.numbers, mean[last], staticMean, last)),
      this.note,
      element("div", { className: "pickers" }, select("Measure",
        Object.keys(MEASURES).map((value) => ({ value, text: value })), this.measure,
        (measure) => { this.measure = measure; this.#draw(); }, { id: "measure", describedBy: "measure-meaning" })),
      element("p", { id: "measure-meaning", className: "quiet" }, MEASURES[this.measure]),
      element("div", { className: "beside" }, element("div", { className: "figure" }, chart),
        numbers(layers, curves, mean, staticMean, many)),
      ...(many ? this.#pairs(occurrences, layers) : []),
      element("h3", {}, "Contributions to each occurrence"),
      element("ol", { className: "occurrences" }, ...occurrences.map((item, place) =>
        occurrence(item, this.request.occurrences[place].text, this.#number(place)))),
      this.curl.root,
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  #number(/** @type {number} */ place) {
    return this.numbers[place] ?? place + 1;
  }

  /** Create the table of pairwise similarities at one layer. */
  #pairs(occurrences, layers) {
    const place = Math.min(this.layer ?? layers.length - 1, layers.length - 1);
    const values = layers[place][this.measure];
    const names = occurrences.map(({ text }, index) => `${this.#number(index)} ${isolated(text)}`);
    const lowest = Math.min(...values.flat());
    const rows = values.map((row, index) => element("tr", {}, element("th", { scope: "row" }, names[index]),
      ...row.map((value) => {
        const cell = element("td", {}, formatNumber(value));
        applyTint(cell, value - lowest, 1 - lowest);
        return cell;
      })));
    const table = element("table", { className: "matrix", id: "pairs" },
      element("caption", {}, `Pairwise similarity at layer ${layers[place].layer}, ${this.measure}`),
      element("thead", {}, element("tr", {}, element("td", { className: "corner" }),
        ...names.map((name) => element("th", { scope: "col" }, element("span", {}, name))))),
      element("tbody", {}, ...rows));
    return [
      element("div", { className: "pickers" }, select("Layer of the table",
        layers.map(({ layer }, index) => ({ value: String(index), text: `layer ${layer}` })), String(place),
        (layer) => { this.layer = Number(layer); this.#draw(); }, { id: "pair-layer" })),
      scroller("Pairwise similarity", table),
    ];
  }
}

function headline(occurrences, numbers, last, staticMean, layer) {
  const texts = [...new Set(occurrences.map(({ text }) => text.toLowerCase()))];
  const inOne = new Set(numbers).size === 1;
  const subject = texts.length === 1
    ? [element("strong", {}, bdi(texts[0])), inOne ? ` (${occurrences.length} occurrences in sentence ${numbers[0]})` : ` in ${occurrences.length} sentences`]
    : joinWords(texts.slice(0, 6));
  const similarity = staticMean > 0.9995 ? "1" : formatNumber(staticMean);
  return [...subject, `: the similarity of the static vectors is ${similarity}; in context, it is ${formatNumber(last)} at layer ${layer}.`];
}

/** Create the table of the values in the chart. */
function numbers(layers, curves, mean, staticMean, many) {
  const names = many ? ["layer", "mean", "lowest", "highest", "static"] : ["layer", "in context", "static"];
  const rows = layers.map(({ layer }, place) => {
    const all = curves.map((values) => values[place]);
    const shown = many ? [mean[place], Math.min(...all), Math.max(...all), staticMean] : [mean[place], staticMean];
    return element("tr", {}, element("th", { scope: "row" }, String(layer)),
      ...shown.map((value) => element("td", {}, formatNumber(value))));
  });
  const table = element("table", { className: "numbers", id: "layers" },
    element("caption", {}, "Values of the chart"),
    element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows));
  return scroller("Similarity by layer", table);
}

function occurrence({ text, start, end, contributors }, /** @type {string} */ sentence, /** @type {number} */ number) {
  const words = wordsOf(sentence);
  const characters = Array.from(sentence);
  const part = (/** @type {number} */ from, /** @type {number} */ to) => characters.slice(from, to).join("");
  const largest = Math.max(...contributors.map(({ share }) => share), 0);
  const bars = contributors.map(({ text: word, start: from, share }) => {
    const place = words.findIndex((other) => other.start === from);
    const bar = element("span", { className: "bar" });
    bar.style.setProperty("--length", (largest ? Math.max(0, share) / largest : 0).toFixed(3));
    return element("li", {}, element("span", { className: "word" }, bdi(word), place < 0 ? "" : ordinal(words, place)), " ", bar, " ",
      element("span", { className: "number" }, formatNumber(share)));
  });
  return element("li", { value: number },
    element("p", { className: "quote", dir: "auto" }, start > CONTEXT_CHARACTERS ? "…" : "", part(Math.max(0, start - CONTEXT_CHARACTERS), start),
      element("strong", {}, text), part(end, end + CONTEXT_CHARACTERS), end + CONTEXT_CHARACTERS < characters.length ? "…" : ""),
    element("ul", { className: "bars" }, ...bars));
}

function average(/** @type {number[]} */ values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
