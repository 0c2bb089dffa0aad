import { call } from "./api.js";
import { AttentionMap } from "./attention.js";
import { withChoice, chosenTexts, hasWords, withText, createSentence, selectWords } from "./choice.js";
import { Comparison } from "./comparison.js";
import { Curl } from "./curl.js";
import { element, select } from "./element.js";
import { nameSentence } from "./faults.js";
import { Matrix } from "./matrix.js";
import { Multiples } from "./multiples.js";
import { isolated, joinWords } from "./naming.js";
import { Notices } from "./notices.js";
import { Pickers } from "./pickers.js";
import { Query } from "./query.js";
import { SentenceList } from "./sentences.js";
import { DEFAULTS, allHeadsRequest, hasHeads, headReason, mapRequest, compatible } from "./settings.js";
import { same } from "./words.js";

const EXAMPLES = ["He cashed a check at the bank.", "They sat on the bank of the river."];
const MOST_SENTENCES = 64;
const LONG_WORDS = 64;
const TOP_CONTRIBUTORS = 5;
const TYPING_MS = 350;
const CHOOSING_MS = 80;
const NOT_COMPUTED = "Not computed. See the message at the top of the page.";

/** The state of the page, its requests, and its views. */
class Page {
  constructor() {
    this.sentences = selectWords(EXAMPLES.map((text, id) => createSentence(id, text)));
    this.nextId = EXAMPLES.length;
    this.open = 0;
    this.requested = DEFAULTS; // may be incompatible with the current kind
    this.settings = DEFAULTS;
    /** @type {import("./settings.js").Model | null} */
    this.model = null;
    /** @type {{response: any, request: any} | null} */
    this.latest = null;
    /** @type {Map<number, AttentionMap>} latest map per sentence */
    this.maps = new Map();
    this.failed = false;
    this.expanded = ""; // long sentence whose thumbnails the user requested

    this.notices = new Notices(find("#notices"), () => this.retry());
    this.list = new SentenceList(find("#sentences"), {
      onText: (id, text) => this.#retype(id, text),
      onRemove: (id) => this.#remove(id),
      onChoose: (id, unit) => this.#choose(id, unit),
    });
    this.pickers = new Pickers(find("#pickers"), (change) => this.#set(change));
    this.opener = element("div", { className: "pickers" });
    this.matrixBox = element("div", {});
    this.matrix = new Matrix(this.matrixBox);
    this.curl = new Curl();
    find("#map .body").append(this.opener, this.matrixBox, this.curl.root);
    this.multiples = new Multiples(find("#heads .body"), (layer, head) => this.#show(layer, head));
    this.comparison = new Comparison(find("#comparison .body"));

    this.mapQuery = this.#query("v1/attend", ["#map", "#sentences"], (response, request) => this.#receive(response, request));
    this.headsQuery = this.#query("v1/attend", ["#heads"], (response, request) => {
      this.multiples.show(response, request.kind);
      this.#render();
    }, () => this.multiples.clear());
    this.compareQuery = this.#query("v1/compare", ["#comparison"], (response, request) => this.comparison.show(response, request),
      () => this.comparison.showMessage(NOT_COMPUTED));

    find("#add").addEventListener("click", () => this.#add());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#repaint());
  }

  start() {
    this.#load();
    this.#request(0);
    this.#render();
  }

  /** Send the failed requests again. */
  retry() {
    if (!this.model) this.#load();
    this.#request(0);
  }

  async #load() {
    try {
      this.model = await call("v1/model");
      this.notices.set("model", null);
      const { name, num_hidden_layers: layers, num_attention_heads: heads } = /** @type {any} */ (this.model);
      find("#model").textContent = `${name}, ${layers} layers, ${heads} heads`;
      this.#render();
    } catch (error) {
      this.notices.set("model", /** @type {any} */ (error));
    }
  }

  #query(route, /** @type {string[]} */ places, onResponse, onFailure = () => {}) {
    const name = places[0];
    return new Query(route, {
      onBusy: (busy) => {
        for (const place of places) find(place).setAttribute("aria-busy", String(busy));
        if (name === "#map" && busy) this.#render();
      },
      onResponse,
      onError: (error, request) => {
        if (name === "#map") this.failed = error !== null;
        this.notices.set(name, error && nameSentence(error, request, this.sentences.map(({ text }) => text)));
        if (!error) return;
        onFailure();
        this.#render();
      },
    });
  }

  #request(/** @type {number} */ delay) {
    const filled = this.sentences.filter(hasWords);
    const texts = filled.map(({ text }) => text);
    this.mapQuery.request(texts.length ? mapRequest(this.settings, texts) : null, delay);

    const opened = filled.find(({ id }) => id === this.open);
    const long = opened && opened.words.length > LONG_WORDS && opened.text !== this.expanded;
    this.headsQuery.request(opened && !long ? allHeadsRequest(this.settings, opened.text) : null, delay);
    if (!opened) this.multiples.clear();
    if (long) this.multiples.offer(() => { this.expanded = opened.text; this.#request(0); });

    this.#compare(filled, delay);
  }

  /** Compare the selected words, or all occurrences of the word of a single sentence. */
  #compare(/** @type {import("./choice.js").Sentence[]} */ filled, /** @type {number} */ delay) {
    const selected = filled.flatMap(({ id, text, words, word }) => (word ? [{ id, text, words, word }] : []));
    const places = selected.length === 1
      ? selected.flatMap((item) => item.words.filter((word) => same(word, item.word)).map((word) => ({ ...item, word })))
      : selected;
    const occurrences = places.slice(0, MOST_SENTENCES)
      .map(({ text, word: { start, end } }) => ({ text, span: [start, end] }));
    const enough = occurrences.length > 1;
    this.compareQuery.request(enough ? { occurrences, layers: "all", top_contributors: TOP_CONTRIBUTORS } : null, delay);
    const words = joinWords(chosenTexts(filled), " or ");
    const lacking = filled.filter(({ word }) => !word).map(({ id }) => `sentence ${this.#number(id)}`).join(", ");
    if (enough) this.comparison.setSentences(places.map(({ id }) => this.#number(id)), lacking ? ["Not compared (without ", ...words, `): ${lacking}.`] : []);
    else if (!lacking) this.comparison.showMessage("Add a second sentence with the same word to compare its vectors.");
    else this.comparison.showMessage(`Only sentence ${this.#number(selected[0].id)} contains `, ...words, ". Add it to another sentence, or select "
      + `a word in ${lacking}.`);
  }

  #number(/** @type {number} */ id) {
    return this.sentences.findIndex((sentence) => sentence.id === id) + 1;
  }

  /** Explain why a sentence has no selected word. */
  #note(/** @type {import("./choice.js").Sentence} */ sentence) {
    if (sentence.word || !sentence.text.trim()) return [];
    if (!hasWords(sentence)) return ["This sentence contains no words."];
    return ["This sentence does not contain ", ...joinWords(chosenTexts(this.sentences), " or "), ". Select another word to compare it."];
  }

  #receive(response, request) {
    this.latest = { response, request };
    this.curl.show("v1/attend", request);
    this.#read();
    this.#render();
  }

  /** Create the maps of the latest response. A sentence that has changed since then keeps its previous map. */
  #read() {
    if (!this.latest) return;
    const { response, request } = this.latest;
    for (const { id, text } of this.sentences) {
      const place = request.inputs.indexOf(text);
      if (place >= 0) this.maps.set(id, new AttentionMap(response.results[place], { ...request, inputs: [text] }, this.settings.self));
      else if (!text.trim()) this.maps.delete(id);
    }
  }

  #render() {
    const sentences = new Map(this.sentences.map((sentence) => [sentence.id, sentence]));
    const viewOf = (/** @type {number} */ id) => {
      const sentence = /** @type {import("./choice.js").Sentence} */ (sentences.get(id));
      const newest = hasWords(sentence) ? this.maps.get(id) ?? null : null;
      const stale = newest !== null && !newest.isResultOf(mapRequest(this.settings, [sentence.text]));
      // Show outdated values, dimmed, only while a request is pending.
      const map = stale && this.failed ? null : newest;
      const chosen = map && sentence.word ? map.unitOf(sentence.word) : -1;
      const note = !map && this.failed && hasWords(sentence) ? [NOT_COMPUTED] : this.#note(sentence);
      return { map, chosen, stale, note };
    };
    this.list.show(this.sentences, viewOf, this.open);
    find("#add").toggleAttribute("disabled", this.sentences.length >= MOST_SENTENCES);
    if (this.model) this.pickers.show(this.settings, this.model);

    const place = this.sentences.findIndex(({ id }) => id === this.open);
    const { map, chosen, stale } = viewOf(this.open);
    this.#renderOpener(place);
    find("#map").classList.toggle("stale", stale);
    this.matrixBox.hidden = this.curl.root.hidden = map === null;
    find("#scale").textContent = map?.scale ?? "";
    if (map) this.matrix.show(map, chosen, `Sentence ${place + 1}, ${map.view}`);
    this.multiples.mark(this.settings, headReason(this.settings) === "" && hasHeads(this.settings.kind));
  }

  /** Render the select for the sentence whose map is shown. */
  #renderOpener(/** @type {number} */ place) {
    const rendered = JSON.stringify([this.sentences.map(({ text }) => text), place]);
    if (this.opener.dataset.rendered === rendered) return;
    const hadFocus = this.opener.contains(document.activeElement);
    const options = this.sentences.map(({ id, text }, index) => ({ value: String(id), text: `${index + 1}. ${isolated(text)}` }));
    const picker = select("Sentence", options, String(this.open), (id) => {
      this.open = Number(id);
      this.#request(0);
      this.#render();
    }, { id: "open" });
    this.opener.dataset.rendered = rendered;
    this.opener.hidden = this.sentences.length < 2;
    this.opener.replaceChildren(picker);
    if (hadFocus) picker.querySelector("select")?.focus();
  }

  #set(/** @type {Partial<import("./settings.js").Settings>} */ change) {
    this.requested = { ...this.requested, ...change };
    this.settings = compatible(this.requested);
    if ("self" in change) this.#read();
    this.#request(CHOOSING_MS);
    this.#render();
  }

  /** Show the map of a thumbnail. */
  #show(/** @type {number} */ layer, /** @type {number} */ head) {
    const kind = hasHeads(this.settings.kind) ? this.settings.kind : "probs";
    this.#set({ kind, layer: String(layer), head: String(head) });
  }

  #retype(/** @type {number} */ id, /** @type {string} */ text) {
    this.#settle(this.sentences.map((sentence) => (sentence.id === id ? withText(sentence, text) : sentence)), TYPING_MS);
  }

  #settle(/** @type {import("./choice.js").Sentence[]} */ sentences, /** @type {number} */ delay) {
    this.sentences = selectWords(sentences);
    this.#request(delay);
    this.#render();
  }

  #choose(/** @type {number} */ id, /** @type {import("./attention.js").Unit} */ unit) {
    if (unit.special) return;
    this.open = id;
    this.#settle(withChoice(this.sentences, id, unit), 0);
  }

  #add() {
    const id = this.nextId++;
    this.sentences = [...this.sentences, createSentence(id, "")];
    this.#render();
    this.list.focus(id);
  }

  #remove(/** @type {number} */ id) {
    const sentences = this.sentences.filter((sentence) => sentence.id !== id);
    this.maps.delete(id);
    if (this.open === id) this.open = sentences[0].id;
    this.#settle(sentences, 0);
    find("#add").focus();
  }

  /** Paint the canvases again after a change of the color scheme. */
  #repaint() {
    this.#read();
    this.headsQuery.reset();
    this.#request(0);
    this.#render();
  }
}

function find(/** @type {string} */ selector) {
  return /** @type {HTMLElement} */ (document.querySelector(selector));
}

new Page().start();
