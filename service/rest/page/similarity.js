import { applyTint } from "./attention.js";
import { downloads } from "./download.js";
import { button, element, select } from "./element.js";
import { FieldFault, truncate } from "./faults.js";
import { heatmapFigure } from "./figure.js";
import { MOST_DOCUMENTS } from "./fragment.js";
import { columnSums, Heatmap, largestOf, pairRows, PROPORTIONAL, rowSums, sum } from "./heatmap.js";
import { formatNumber } from "./number.js";
import { queryMaker } from "./query.js";
import { RequestPanel } from "./request.js";

/** @type {import("./fragment.js").SimilarityState} */
const OPENING = {
  query: "How do I open a bank account?",
  documents: ["You need a passport to open an account at the bank.", "We walked along the river bank until dark."],
  shown: 0, tint: "sum",
};
const TYPING_MS = 400;
const CELL = 30; // pixels of a cell in saved figures
const TINTS = { sum: "sum of contributions", effect: "effect of leaving the word out" };
const SUM_MEANING = "The sum of the row or column of the word in the heat map. Pairs with special tokens are not included.";
const EFFECT_MEANINGS = {
  leave_one_out: "How much the score falls if the vector of the word is left out. Orange: the score rises.",
  occlusion: "How much the score falls if the word is removed from the text. Orange: the score rises.",
};
const AGREEMENT = " This ranking agrees better than contributions with the effect of removing the word from the text.";
const UNAVAILABLE = {
  max_pooling: "Contributions are not available: max pooling may take each component from a different word, so the score is not a sum over pairs of words.",
  nonlinear_dense_layers: "Contributions are not available: the dense layers of this model are not linear, so the score is not a sum over pairs of words.",
  cls_pooling: "Contributions are not available: the embedding of this model is the vector of its first token, so the score is not a sum over "
    + "pairs of words. The words show the effect of removing each word.",
  last_pooling: "Contributions are not available: the embedding of this model is the vector of its last token, so the score is not a sum over "
    + "pairs of words. The words show the effect of removing each word.",
};
/** Keys of `UNAVAILABLE` for the kinds of pooling that use one token. */
const ONE_TOKEN = { cls: "cls_pooling", last: "last_pooling" };
const PROMPTS = { queries: ["query"], documents: ["document", "passage", "corpus"] };
const REST = { special_tokens: "special tokens", prompt: "prompt", bias: "bias", dropped: "dropped pairs" };

/** The tab "Similarity": the scores of texts for a query, and the word pairs that a score is the sum of. */
export class SimilarityView {
  /**
   * @param {HTMLElement} root
   * @param {import("./notices.js").Notices} notices
   * @param {() => void} onChange called when the state changes
   */
  constructor(root, notices, onChange) {
    this.onChange = onChange;
    this.notices = notices;
    /** @type {Map<string, import("./api.js").ApiError>} why the server rejected a text, by list and text */
    this.rejected = new Map();
    /** @type {FieldFault[]} of the query and the texts */
    this.faults = [];
    ({ query: this.query, documents: this.documents, shown: this.shown, tint: this.tint } = OPENING);
    this.active = false;
    /** @type {{pooling: string, prompts: Record<string, string>} | null} */
    this.model = null;
    this.busy = false;
    /** @type {{response: any, request: any} | null} */
    this.latest = null;
    this.fields = element("div", { className: "texts" });
    this.result = element("div", {});
    this.words = element("div", { className: "in-place" });
    this.sum = element("div", {});
    this.message = element("p", { className: "quiet" });
    this.hint = element("p", { className: "quiet", id: "similarity-hint", "aria-live": "polite" });
    this.meaning = element("p", { id: "tint-meaning", className: "quiet" });
    this.map = element("div", { className: "figure" });
    this.heatmap = new Heatmap(this.map);
    this.request = new RequestPanel();
    this.save = downloads("heat map", () => this.#saved());
    this.add = button("Add a text", () => this.#setDocuments([...this.documents, ""], this.documents.length), { className: "small", id: "add-text" });
    this.tintPicker = select("Tint words by", Object.entries(TINTS).map(([value, text]) => ({ value, text })), this.tint,
      (tint) => { this.tint = tint; this.#draw(); this.onChange(); }, { id: "tint", describedBy: "tint-meaning" });
    this.result.append(element("div", { className: "pickers" }, this.tintPicker, this.meaning), this.words, this.message,
      element("div", { className: "beside" }, this.map, this.sum), this.save, this.request.root);
    root.append(this.fields, element("p", { className: "actions" }, this.add), this.hint, this.result);
    const make = queryMaker(notices, {
      nameOf: (item, list) => (list === "queries" ? "Query" : `Text ${this.documents.indexOf(item) + 1}`),
      onTooLong: (item, list, error) => {
        this.rejected.set(list + item, error);
        this.#request(0);
        this.#draw();
      },
    });
    this.similarityQuery = make("v1/similarity", ["#similarity"], {
      onBusy: (busy) => { this.busy = busy; },
      onResponse: (response, request) => {
        this.latest = { response, request };
        this.request.show("similarity", request);
        this.#draw();
      },
      onFailure: (failed) => { if (failed) { this.latest = null; this.#draw(); } },
    });
    this.#build();
  }

  /** Send the request of the view if its tab is selected. */
  start() {
    this.#request(0);
  }

  setModel(/** @type {{pooling: string, prompts: Record<string, string>}} */ model) {
    this.model = model;
    this.#request(0);
  }

  setActive(/** @type {boolean} */ active) {
    this.active = active;
    this.#request(0);
  }

  /** The state for a link, or null if it is the opening state. */
  get state() {
    const { query, documents, shown, tint } = this;
    const state = { query, documents, shown, tint };
    return JSON.stringify(state) === JSON.stringify(OPENING) ? null : state;
  }

  /** Show the state of a link, or the opening state. */
  restore(/** @type {import("./fragment.js").SimilarityState | null} */ state) {
    Object.assign(this, state ?? OPENING);
    /** @type {HTMLSelectElement} */ (this.tintPicker.querySelector("select")).value = this.tint;
    this.#build();
    this.#request(0);
    this.#draw();
  }

  #request(/** @type {number} */ delay) {
    const documents = this.#filled().map((place) => this.documents[place]);
    const ready = this.active && this.model !== null && this.query.trim() && !this.rejected.has(`queries${this.query}`) && documents.length;
    // The server rejects leave_one_out for pooling that uses one token.
    const effect = ONE_TOKEN[this.model?.pooling] ? "occlusion" : "leave_one_out";
    this.similarityQuery.request(ready ? { queries: [this.query], documents, explain: true, unit: "word", effect } : null, delay);
    if (this.active && !ready) { this.latest = null; this.#draw(); }
  }

  /** Return the places of the texts that are neither blank nor too long. */
  #filled() {
    return this.documents.flatMap((text, place) => (text.trim() && !this.rejected.has(`documents${text}`) ? place : []));
  }

  #remove(/** @type {number} */ place) {
    if (place < this.shown) this.shown--;
    this.#setDocuments(this.documents.toSpliced(place, 1), -1);
  }

  #setDocuments(/** @type {string[]} */ documents, /** @type {number} */ focused) {
    this.documents = documents;
    this.shown = Math.min(this.shown, documents.length - 1);
    this.#build();
    this.#change(0);
    this.fields.querySelectorAll("textarea")[focused + 1]?.focus();
  }

  #change(/** @type {number} */ delay) {
    this.#request(delay);
    this.#draw();
    this.onChange();
  }

  /** Truncate the query or a text, unless the user has changed it since. */
  async #truncate(/** @type {HTMLTextAreaElement} */ area, /** @type {"queries" | "documents"} */ list) {
    const text = area.value;
    const error = this.rejected.get(list + text);
    if (!error) return;
    const name = PROMPTS[list].find((prompt) => prompt in (this.model?.prompts ?? {}));
    try {
      const [truncated] = await truncate(text, error, name ? { prompt_name: name } : {});
      this.notices.set("truncate", null);
      if (area.value !== text || !area.isConnected) return;
      area.value = truncated;
      area.dispatchEvent(new Event("input"));
    } catch (failure) {
      this.notices.set("truncate", /** @type {any} */ (failure));
    }
  }

  /** Create the fields of the query and the texts. */
  #build() {
    this.add.disabled = this.documents.length >= MOST_DOCUMENTS;
    this.faults = [];
    this.scores = this.documents.map(() => element("output", { className: "score" }));
    const cards = this.documents.map((text, place) => {
      const name = `Text ${place + 1}`;
      const radio = element("input", {
        type: "radio", name: "shown", checked: place === this.shown, "aria-label": `Show the word pairs of text ${place + 1}`,
        on: { change: () => { this.shown = place; this.#draw(); this.onChange(); } },
      });
      const several = this.documents.length > 1;
      return element("div", { className: "sentence" }, element("div", { className: "head" },
        element("label", { htmlFor: `text-${place}` }, name), several && element("label", { className: "show" }, radio, "Show"), this.scores[place],
        several && button("Remove", () => this.#remove(place), { className: "plain", "aria-label": `Remove text ${place + 1}` })),
      ...this.#area(`text-${place}`, text, (value) => { this.documents = this.documents.with(place, value); }));
    });
    this.fields.replaceChildren(
      element("div", { className: "sentence" }, element("div", { className: "head" }, element("label", { htmlFor: "query" }, "Query")),
        ...this.#area("query", this.query, (value) => { this.query = value; })),
      element("div", { className: "documents", role: "group", "aria-label": "Text in the heat map" }, ...cards));
  }

  #area(/** @type {string} */ id, /** @type {string} */ text, /** @type {(value: string) => void} */ onText) {
    const area = element("textarea", {
      id, value: text, rows: 2, dir: "auto", spellcheck: false, placeholder: "Type a text",
      on: { input: () => { onText(area.value); this.#change(TYPING_MS); } },
    });
    const fault = new FieldFault([area], () => this.#truncate(area, id === "query" ? "queries" : "documents"));
    if (id === "query") this.faults.unshift(fault);
    else this.faults.push(fault);
    return [area, fault.root];
  }

  /** Return the word pairs of the shown text in the latest response, or null. */
  #pair() {
    if (!this.latest) return null;
    const { response, request } = this.latest;
    const place = request.documents.indexOf(this.documents[this.shown]);
    const pair = place < 0 || request.queries[0] !== this.query ? null : response.pairs[place];
    return pair && { ...pair, rows: response.queries[0].units, columns: response.documents[place].units };
  }

  #draw() {
    const response = this.latest?.response;
    const scoreOf = new Map(this.latest?.request.documents.map((text, place) => [text, response.scores[0][place]]));
    const current = this.latest?.request.queries[0] === this.query;
    this.scores?.forEach((output, place) => {
      const score = current ? scoreOf.get(this.documents[place]) : undefined;
      output.textContent = score === undefined ? "" : `${response.similarity} ${formatNumber(score)}`;
    });
    [`queries${this.query}`, ...this.documents.map((text) => `documents${text}`)].forEach((key, place) =>
      this.faults[place]?.show(this.rejected.get(key), place ? `Text ${place}` : "Query"));
    const pair = this.#pair();
    this.hint.textContent = this.#missing();
    this.hint.hidden = !this.hint.textContent;
    // Show outdated values, dimmed, only while a request is pending.
    this.result.hidden = !pair && !(this.busy && this.latest && this.hint.hidden);
    this.result.classList.toggle("stale", !pair);
    if (!pair) return;
    // If pooling uses one token, no pair of words contributes: the whole score is that of these tokens.
    const oneToken = ONE_TOKEN[this.model?.pooling];
    const reason = oneToken ?? response.contributions_unavailable;
    const available = pair.contributions !== null && !oneToken;
    this.tintPicker.hidden = !available || pair.query_effects === null;
    const tint = !available ? "effect" : pair.query_effects === null ? "sum" : this.tint;
    const effect = this.latest?.request.effect;
    const agreement = available && effect === "leave_one_out" ? AGREEMENT : "";
    this.meaning.textContent = tint === "sum" ? SUM_MEANING : EFFECT_MEANINGS[effect] + agreement;
    this.message.textContent = available ? "" : UNAVAILABLE[reason] ?? "Contributions are not available.";
    this.message.hidden = available;
    this.map.hidden = this.sum.hidden = this.save.hidden = !available;
    this.#drawWords(pair, tint === "sum"
      ? [rowSums(pair.contributions), columnSums(pair.contributions)]
      : [pair.query_effects ?? [], pair.document_effects ?? []]);
    if (!available) return;
    this.sum.replaceChildren(sumTable(pair));
    this.heatmap.show({ rows: pair.rows, columns: pair.columns, values: pair.contributions }, this.shown + 1);
  }

  /** Return which text is missing, or "". */
  #missing() {
    if (!this.query.trim() || !this.documents.some((text) => text.trim())) return "Type a query and a text.";
    return this.documents[this.shown].trim() ? "" : `Text ${this.shown + 1} is empty. Type a text, or select another.`;
  }

  #drawWords(pair, /** @type {number[][]} */ [rowValues, columnValues]) {
    const largest = largestOf([rowValues, columnValues]);
    const strip = (name, units, values) => element("div", { className: "strip", role: "group", "aria-label": name },
      element("p", { className: "quiet" }, name), element("div", { className: "units", dir: "auto" }, ...units.map((unit, place) => {
        const word = element("span", { className: "unit" }, element("span", { className: "text" }, unit.text), " ",
          element("span", { className: "value" }, values[place] === undefined ? "" : formatNumber(values[place])));
        applyTint(word, values[place] ?? 0, largest, PROPORTIONAL);
        return word;
      })));
    this.words.replaceChildren(strip("Words of the query", pair.rows, rowValues),
      strip(`Words of text ${this.shown + 1}`, pair.columns, columnValues));
  }

  #saved() {
    const pair = this.#pair();
    if (!pair?.contributions) return null;
    const names = (units) => units.map(({ text }) => text);
    const { rows, columns, contributions: values } = pair;
    const figure = heatmapFigure({
      title: `Query and text ${this.shown + 1}: ${formatNumber(pair.score)}`, rows: names(rows), columns: names(columns), values,
      largest: largestOf(values), cell: CELL, power: PROPORTIONAL,
    });
    return { name: `attendant-similarity-${this.shown + 1}`, figure, rows: pairRows({ rows, columns, values }) };
  }
}

/** Create the table of the terms that a score is the sum of. */
function sumTable({ contributions, rest, score }) {
  const terms = [["pairs of words", sum(contributions.map(sum))],
    ...Object.entries(REST).map(([name, label]) => [label, rest[name] ?? 0]).filter(([, value]) => value !== 0)];
  const row = (label, value, className = "") => element("tr", { className }, element("th", { scope: "row" }, label),
    element("td", {}, formatNumber(value)));
  return element("table", { className: "numbers", id: "terms" },
    element("caption", {}, element("span", {}, "The score as a sum")),
    element("tbody", {}, ...terms.map(([label, value]) => row(label, value)), row("score", score, "total")));
}
