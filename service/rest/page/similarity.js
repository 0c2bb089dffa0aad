import { button, element, select } from "./element.js";
import { FieldFault, truncate } from "./faults.js";
import { MOST_DOCUMENTS } from "./fragment.js";
import { formatNumber } from "./number.js";
import { queryMaker } from "./query.js";
import { Reasons } from "./reasons.js";
import { RequestPanel } from "./request.js";
import { explainNoScoring, oneTokenPooling, scoringOf, SCORINGS } from "./scorings.js";

/** @type {import("./fragment.js").SimilarityState} */
const OPENING = {
  query: "How do I open a bank account?",
  documents: ["You need a passport to open an account at the bank.", "We walked along the river bank until dark."],
  shown: 0, tint: "sum", score: null,
};
const TYPING_MS = 400;
const ROLES = { queries: "query", documents: "document" };

/** The tab "Similarity": the ranking of texts for a query, and the reasons for a score. */
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
    ({ query: this.query, documents: this.documents, shown: this.shown, tint: this.tint, score: this.score } = OPENING);
    this.active = false;
    /** @type {import("./scorings.js").Model | null} */
    this.model = null;
    this.busy = false;
    /** @type {{ranking: import("./scorings.js").Ranking, scoring: string, request: any} | null} */
    this.latest = null;
    this.scorings = element("div", { className: "pickers" });
    this.fields = element("div", { className: "texts" });
    this.result = element("div", {});
    this.hint = element("p", { className: "quiet", id: "similarity-hint", "aria-live": "polite" });
    this.reasons = new Reasons(this.tint, (tint) => { this.tint = tint; this.onChange(); });
    this.request = new RequestPanel();
    this.add = button("Add a text", () => this.#setDocuments([...this.documents, ""], this.documents.length), { className: "small", id: "add-text" });
    this.result.append(this.reasons.root, this.request.root);
    root.append(this.scorings, this.fields, element("p", { className: "actions" }, this.add), this.hint, this.result);
    const make = queryMaker(notices, {
      nameOf: (item, list) => (list === "documents" ? `Text ${this.documents.indexOf(item) + 1}` : "Query"),
      onTooLong: (item, list, error) => {
        this.rejected.set(list + item, error);
        this.#request(0);
        this.#draw();
      },
    });
    const makeFor = (/** @type {"similarity" | "rerank"} */ route) => make(`v1/${route}`, ["#similarity"], {
      onBusy: (busy) => { this.busy = busy; },
      onResponse: (response, request) => {
        const scoring = /** @type {string} */ (this.scoring);
        this.latest = { ranking: SCORINGS[scoring].ranking(response), scoring, request };
        this.request.show(route, request);
        this.#draw();
      },
      onFailure: (failed) => { if (failed) { this.latest = null; this.#draw(); } },
    });
    this.queries = { similarity: makeFor("similarity"), rerank: makeFor("rerank") };
    this.#build();
  }

  /** Send the request of the view if its tab is selected. */
  start() {
    this.#request(0);
  }

  setModel(/** @type {import("./scorings.js").Model} */ model) {
    if (this.model?.name !== model.name) {
      this.rejected.clear();
      this.latest = null;
    }
    this.model = model;
    this.#buildScorings();
    this.#request(0);
    this.#draw();
  }

  /** The name of the selected scoring, or null if the model is unknown or does not score texts. */
  get scoring() {
    return this.model && scoringOf(this.model, this.score);
  }

  setActive(/** @type {boolean} */ active) {
    this.active = active;
    this.#request(0);
  }

  /** The state for a link, or null if it is the opening state. */
  get state() {
    const { query, documents, shown, tint, score } = this;
    const state = { query, documents, shown, tint, score };
    return JSON.stringify(state) === JSON.stringify(OPENING) ? null : state;
  }

  /** Show the state of a link, or the opening state. */
  restore(/** @type {import("./fragment.js").SimilarityState | null} */ state) {
    Object.assign(this, state ?? OPENING);
    this.reasons.setTint(this.tint);
    this.#buildScorings();
    this.#build();
    this.#request(0);
    this.#draw();
  }

  #request(/** @type {number} */ delay) {
    const documents = this.#filled().map((place) => this.documents[place]);
    const { model, scoring } = this;
    const isReady = this.active && scoring && this.query.trim() && !this.rejected.has(`queries${this.query}`) && documents.length;
    const { route, request } = SCORINGS[scoring ?? "embedding"];
    const other = this.queries[route === "rerank" ? "similarity" : "rerank"];
    if (other.current) other.request(null);
    this.queries[route].request(isReady && model ? request(this.query, documents, model) : null, delay);
    if (this.active && !isReady) { this.latest = null; this.#draw(); }
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
    if (!error) return this.notices.set("truncate", null);
    // The role decides the limit and the prompt.
    const options = { role: ROLES[list], ...(this.scoring === "maxsim" ? { outputs: ["multi_vector"] } : {}) };
    // A cross-encoder reads the query and the text as one input, with the default prompt unless it is part of a template.
    const isPair = this.scoring === "cross_encoder" && list === "documents";
    const prompt = this.model?.operations.includes("classify") ? {} : { prompt: "" };
    try {
      const truncated = isPair ? (await truncate({ text: this.query, pair: text }, error, prompt))[1]
        : (await truncate(text, error, options))[0];
      this.notices.set("truncate", null);
      if (area.value !== text || !area.isConnected) return;
      area.value = truncated;
      area.dispatchEvent(new Event("input"));
    } catch (failure) {
      this.notices.set("truncate", /** @type {any} */ (failure), () => this.#truncate(area, list));
    }
  }

  /** Create the control for the scoring. It names those that the model lacks. */
  #buildScorings() {
    const { model, scoring } = this;
    if (!model) return;
    const options = Object.entries(SCORINGS).map(([value, { name, isSupported }]) =>
      (isSupported(model) ? { value, text: name } : { value, text: `${name} (not with this model)`, disabled: true }));
    const onChange = (/** @type {string} */ score) => {
      this.score = score;
      this.rejected.clear();
      this.#buildScorings();
      this.#change(0);
      document.getElementById("score")?.focus();
    };
    const meaning = element("p", { id: "score-meaning", className: "quiet" }, scoring ? SCORINGS[scoring].meaning : explainNoScoring(model));
    this.scorings.replaceChildren(scoring ? select("Score texts with", options, scoring, onChange, { id: "score", describedBy: meaning.id }) : "", meaning);
  }

  /** Create the fields of the query and the texts. */
  #build() {
    this.add.disabled = this.documents.length >= MOST_DOCUMENTS;
    this.faults = [];
    this.scores = this.documents.map(() => element("output", { className: "score" }));
    const cards = this.documents.map((text, place) => {
      const name = `Text ${place + 1}`;
      const radio = element("input", {
        type: "radio", name: "shown", checked: place === this.shown, "aria-label": `Explain the score of text ${place + 1}`,
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
        ...this.#area("query", this.query, (value) => {
          this.query = value;
          if (this.scoring === "cross_encoder") this.rejected.clear(); // the limit is for the query and a text together
        })),
      element("div", { className: "documents", role: "group", "aria-label": "Explained text" }, ...cards));
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

  /** Return whether the latest response is about the present query, model and scoring. */
  get isCurrent() {
    const { request, scoring } = this.latest ?? {};
    return Boolean(request) && scoring === this.scoring && (request.query ?? request.queries[0]) === this.query;
  }

  /** Return the score of a text in the latest response with its reasons, or undefined. */
  #pairOf(/** @type {number} */ place) {
    if (!this.latest || !this.isCurrent) return undefined;
    return this.latest.ranking.pairs[this.latest.request.documents.indexOf(this.documents[place])];
  }

  #drawScores() {
    const pairs = this.documents.map((_, place) => this.#pairOf(place));
    const scores = pairs.flatMap((pair) => (pair ? [pair.score] : []));
    this.scores?.forEach((output, place) => {
      const pair = pairs[place];
      const rank = pair && 1 + scores.filter((score) => score > pair.score).length;
      output.textContent = pair ? `${scores.length > 1 ? `${rank}. ` : ""}${this.latest?.ranking.label} ${formatNumber(pair.score)}` : "";
    });
  }

  #draw() {
    this.#drawScores();
    [`queries${this.query}`, ...this.documents.map((text) => `documents${text}`)].forEach((key, place) =>
      this.faults[place]?.show(this.rejected.get(key), place ? `Text ${place}` : "Query"));
    const pair = this.#pairOf(this.shown);
    this.hint.textContent = this.#missing();
    this.hint.hidden = !this.hint.textContent;
    // Show outdated values, dimmed, only while a request is pending.
    this.result.hidden = !pair && !(this.busy && this.latest && this.hint.hidden);
    this.result.classList.toggle("stale", !pair);
    if (!pair || !this.latest || !this.model) return;
    // If pooling uses one token, no pair of words contributes: the whole score is that of these tokens.
    const unavailable = (this.latest.scoring === "embedding" ? oneTokenPooling(this.model) : null) ?? this.latest.ranking.unavailable;
    this.reasons.show({ pair, number: this.shown + 1, effect: this.latest.request.effect, unavailable });
  }

  /** Return which text is missing, or "". */
  #missing() {
    if (!this.query.trim() || !this.documents.some((text) => text.trim())) return "Type a query and a text.";
    if (this.model && !this.scoring) return "";
    return this.documents[this.shown].trim() ? "" : `Text ${this.shown + 1} is empty. Type a text, or select another.`;
  }
}
