import { withModel } from "./api.js";
import { applyTint } from "./attention.js";
import { lineChart } from "./chart.js";
import { downloads } from "./download.js";
import { element, scroller, select } from "./element.js";
import { areDifferentWords, finding, findingOfWords, noteOnLayer0 } from "./finding.js";
import { bdi, isolated, ordinal } from "./naming.js";
import { formatNumber } from "./number.js";
import { Plane } from "./plane.js";
import { RequestPanel } from "./request.js";
import { GROUPS, meanOf, pairsOf } from "./senses.js";
import { distinctTexts, wordsOf } from "./words.js";

export const MEASURES = {
  cosine: "Cosine similarity of the vectors, as in a search index.",
  centered: "Cosine similarity after subtracting the mean over all tokens of these sentences.",
};

export const TOP_CONTRIBUTORS = 5;
const MIN_WIDTH = 280; // of the chart in pixels
const MAX_WIDTH = 600;
const CONTEXT_CHARACTERS = 80; // characters of a sentence before and after the word
const NAMES = { same: "same sense", other: "different senses", unknown: "sense unknown" };
const ONLY_UNKNOWN = "in context";
const DESCRIBED_CURVES = 6;
const LABELED_CURVES = 6;

/** Similarity of the vectors of one word in several sentences, per layer, with that of the dictionary entries. */
export class Comparison {
  /**
   * @param {{finding: HTMLElement, figures: HTMLElement, numbers: HTMLElement}} places of the sentence, the chart with the
   *   picture of the occurrences, and the numbers
   * @param {() => void} onChange called when the user changes the measure
   */
  constructor({ finding: findingRoot, figures, numbers: numbersRoot }, onChange) {
    this.root = numbersRoot;
    this.finding = findingRoot;
    this.figures = figures;
    this.plane = new Plane();
    this.onChange = onChange;
    this.measure = "cosine";
    /** @type {number | null} the layer of the slider, null for the last */
    this.layer = null;
    this.width = 0;
    /** @type {number[]} sentence number per occurrence */
    this.numbers = [];
    /** @type {(string | null)[]} sense per occurrence */
    this.senses = [];
    this.request = new RequestPanel();
    this.note = element("p", { className: "quiet left-out" });
    this.save = downloads("chart", () => this.#saved());
    this.details = element("details", { className: "fold", id: "pair-details" },
      element("summary", {}, "Similarity of each pair, and contributions to each occurrence"));
    this.pairs = element("div", {});
    this.values = element("div", {});
    this.table = element("details", { className: "more", id: "values" }, element("summary", {}, "Values of the chart"), this.values);
    this.details.append(this.pairs);
    new ResizeObserver(([{ contentRect }]) => {
      if (Math.abs(contentRect.width - this.width) > 8 && this.response) this.#draw();
    }).observe(figures);
  }

  /** @param {any} response of POST /v1/compare */
  show(response, /** @type {any} */ request) {
    this.response = response;
    this.sent = request;
    this.request.show("compare", request);
    this.#draw();
  }

  /** Show the vectors of inputs, by layer and input, in the picture. They can arrive before or after the comparison. */
  showVectors(/** @type {number[][][]} */ vectors, /** @type {object[]} */ inputs) {
    this.plane.setVectors(vectors);
    this.vectorsOf = JSON.stringify(withModel({ inputs }));
    this.redraw();
  }

  /** Show why there is no comparison. */
  showMessage(/** @type {(string | Node)[]} */ ...message) {
    this.response = null;
    this.figures.replaceChildren();
    this.plane.clear();
    this.finding.replaceChildren(element("span", { className: "quiet" }, ...message));
    this.root.replaceChildren();
  }

  /**
   * Set the compared sentences, the senses of their words, and a note about the other sentences.
   *
   * @param {number[]} numbers
   * @param {(string | null)[]} senses
   * @param {(string | Node)[]} note
   */
  setSentences(numbers, senses, note) {
    const changed = JSON.stringify([numbers, senses]) !== JSON.stringify([this.numbers, this.senses]);
    this.numbers = numbers;
    this.senses = senses;
    this.note.hidden = !note.length;
    this.note.replaceChildren(...note);
    if (changed) this.redraw();
  }

  /** Set the layer of the slider, or null for the last one. */
  setLayer(/** @type {number | null} */ layer) {
    if (layer === this.layer) return;
    this.layer = layer;
    this.redraw();
  }

  setMeasure(/** @type {string} */ measure) {
    this.measure = measure;
    this.redraw();
  }

  redraw() {
    if (this.response?.occurrences.length === this.numbers.length) this.#draw();
  }

  #draw() {
    const { occurrences, layers, static: staticSimilarity } = this.response;
    const focused = this.root.contains(document.activeElement) ? document.activeElement?.id : "";
    this.width = this.figures.clientWidth;
    const place = Math.min(this.layer ?? layers.length - 1, layers.length - 1);
    const pairs = pairsOf(this.senses);
    const groups = GROUPS.map((group) => ({ group, pairs: pairs.filter((pair) => pair.group === group) }))
      .filter(({ pairs: { length } }) => length);
    const nameOf = (/** @type {import("./senses.js").Group} */ group) =>
      (groups.length === 1 && group === "unknown" ? ONLY_UNKNOWN : NAMES[group]);
    const haveMeans = !areDifferentWords(occurrences);
    const means = !haveMeans ? [] : groups.map(({ group, pairs: members }) =>
      ({ group, name: nameOf(group), count: members.length, values: layers.map((layer) => meanOf(members, layer[this.measure])) }));
    const staticMean = meanOf(pairs, staticSimilarity);
    const { layer } = layers[place];
    this.finding.replaceChildren(...(haveMeans
      ? finding({ occurrences, numbers: this.numbers, means, staticMean, layer, place })
      : findingOfWords({ occurrences, numbers: this.numbers, pairs, matrix: layers[place][this.measure], layer })));

    const many = pairs.length > 1;
    const curves = pairs.map(({ a, b, group }) => ({
      className: `${haveMeans ? "pair" : "context"} ${group}`, values: layers.map(({ [this.measure]: matrix }) => matrix[a][b]),
      title: `sentences ${this.#number(a)} and ${this.#number(b)}, ${nameOf(group)}`,
      label: haveMeans ? undefined : `${this.#number(a)} and ${this.#number(b)}`,
    }));
    const described = haveMeans ? means : curves.slice(0, DESCRIBED_CURVES).map(({ title: name, values }) => ({ name, values }));
    const description = `Similarity of the vectors by layer. ${described.map(({ name, values }) =>
      `${name}: ${formatNumber(values[0])} at layer 0, ${formatNumber(values.at(-1) ?? 0)} at the last layer`).join(". ")}.`
      + (haveMeans ? ` Dictionary entries: ${formatNumber(staticMean)}.` : "");
    if (!haveMeans && curves.length > LABELED_CURVES) for (const curve of curves) delete curve.label;
    this.chart = lineChart(
      [
        ...(haveMeans ? [{ className: "static", values: layers.map(() => staticMean), label: "dictionary entries" }] : []),
        ...(many ? curves : []),
        ...means.map(({ group, name, count, values }) => ({
          className: `context ${group}`, values, label: count > 1 && name === ONLY_UNKNOWN ? `${name}, mean` : name, marked: true,
        })),
      ],
      { description, measure: this.measure, width: Math.max(MIN_WIDTH, Math.min(MAX_WIDTH, this.width)), layer: place },
    );
    const entries = (/** @type {string | number} */ cell) => (haveMeans ? [cell] : []);
    this.rows = [["layer", ...entries("dictionary entries"), ...curves.map(({ title }) => title)],
      ...layers.map(({ layer: number }, index) => [number, ...entries(staticMean), ...curves.map(({ values }) => values[index])])];
    this.figures.replaceChildren(
      element("div", { className: "figure" }, this.chart),
      this.plane.root,
    );
    const isCurrent = this.vectorsOf === JSON.stringify(withModel({ inputs: vectorInputs(this.sent.occurrences) }));
    if (!isCurrent) this.plane.hide();
    else this.plane.show({ layer: place, words: distinctTexts(occurrences), numbers: this.numbers, senses: this.senses });
    this.values.replaceChildren(numbers(layers, means, curves, haveMeans ? staticMean : null, place));
    this.root.replaceChildren(
      this.note, element("p", { className: "quiet" }, noteOnLayer0(meanOf(pairs, layers[0][this.measure]), haveMeans ? staticMean : 0)),
      element("div", { className: "pickers" }, this.#measures()), this.save, this.table, this.request.root, this.details,
    );
    this.pairs.replaceChildren(
      ...(many ? this.#table(pairs, layers[place]) : []),
      element("h3", {}, "Contributions to each occurrence"),
      element("ol", { className: "occurrences" }, ...occurrences.map((item, index) =>
        occurrence(item, this.sent.occurrences[index].text, this.#number(index)))));
    if (focused) document.getElementById(focused)?.focus();
  }

  #measures() {
    const options = Object.keys(MEASURES).map((value) => ({ value, text: value }));
    return element("div", { className: "measure" }, select("Measure", options, this.measure,
      (measure) => { this.setMeasure(measure); this.onChange(); }, { id: "measure", describedBy: "measure-meaning" }),
    element("p", { id: "measure-meaning", className: "quiet" }, MEASURES[this.measure]));
  }

  #number(/** @type {number} */ place) {
    return this.numbers[place] ?? place + 1;
  }

  #saved() {
    return this.response && this.chart && this.rows ? { name: "attendant-similarity-by-layer", figure: this.chart, rows: this.rows } : null;
  }

  /** Create the table of pairwise similarities at one layer. */
  #table(/** @type {import("./senses.js").Pair[]} */ pairs, layer) {
    const values = layer[this.measure];
    const names = this.response.occurrences.map(({ text }, index) => `${this.#number(index)} ${isolated(text)}`);
    const lowest = Math.min(...values.flat());
    const rows = values.map((row, index) => element("tr", {}, element("th", { scope: "row" }, names[index]),
      ...row.map((value, column) => {
        const pair = pairs.find(({ a, b }) => a === Math.min(index, column) && b === Math.max(index, column));
        const cell = element("td", { title: pair && pair.group !== "unknown" ? NAMES[pair.group] : "" }, formatNumber(value));
        applyTint(cell, value - lowest, 1 - lowest);
        return cell;
      })));
    const table = element("table", { className: "matrix", id: "pairs" },
      element("caption", {}, element("span", {}, `Similarity of each pair at layer ${layer.layer}, ${this.measure}`)),
      element("thead", {}, element("tr", {}, element("td", { className: "corner" }),
        ...names.map((name) => element("th", { scope: "col" }, element("span", {}, name))))),
      element("tbody", {}, ...rows));
    return [scroller("Pairwise similarity", table)];
  }
}

/** Return occurrences as inputs of /v1/encode, with their words as spans. */
export function vectorInputs(/** @type {{text: string, span: [number, number]}[]} */ occurrences) {
  return occurrences.map(({ text, span }) => ({ text, spans: [span] }));
}

/** Create the table of the values in the chart. */
function numbers(layers, means, curves, staticMean, place) {
  const many = curves.length > 1;
  const names = ["layer", ...means.map(({ name }) => name), ...(many ? ["lowest", "highest"] : []), ...(staticMean === null ? [] : ["dictionary entries"])];
  const rows = layers.map(({ layer }, index) => {
    const all = curves.map(({ values }) => values[index]);
    const shown = [...means.map(({ values }) => values[index]), ...(many ? [Math.min(...all), Math.max(...all)] : []), ...(staticMean === null ? [] : [staticMean])];
    return element("tr", { className: index === place ? "chosen" : "" }, element("th", { scope: "row" }, String(layer)),
      ...shown.map((value) => element("td", {}, formatNumber(value))));
  });
  const table = element("table", { className: "numbers", id: "layers" },
    element("caption", {}, element("span", {}, "Values of the chart")),
    element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows));
  return scroller("Similarity by layer", table);
}

/** Create the list item of an occurrence: its sentence, and the largest contributions to it as bars. */
export function occurrence({ text, start, end, contributors }, /** @type {string} */ sentence, /** @type {number} */ number) {
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
