import { call } from "./api.js";
import { AttentionMap } from "./attention.js";
import { chosenIn, chosenTexts, hasWords, retyped, sentenceOf, settledWords } from "./choice.js";
import { Comparison } from "./comparison.js";
import { Curl } from "./curl.js";
import { element, select } from "./element.js";
import { ofSentences } from "./faults.js";
import { Matrix } from "./matrix.js";
import { Multiples } from "./multiples.js";
import { isolated, listed } from "./naming.js";
import { Notices } from "./notices.js";
import { Pickers } from "./pickers.js";
import { Query } from "./query.js";
import { SentenceList } from "./sentences.js";
import { DEFAULTS, everyHeadRequest, hasHeads, headReason, mapRequest, settled } from "./settings.js";
import { same } from "./words.js";

const EXAMPLES = ["He cashed a check at the bank.", "They sat on the bank of the river."];
const MOST_SENTENCES = 64;
const LONG_WORDS = 64;
const DRAWS_ON = 5;
const TYPING_MS = 350;
const CHOOSING_MS = 80;
const NOT_COMPUTED = "Not computed: the message at the top says why.";

/** What is chosen, what is asked for it, and where the answers go. */
class Page {
  constructor() {
    this.sentences = settledWords(EXAMPLES.map((text, id) => sentenceOf(id, text)));
    this.made = EXAMPLES.length;
    this.open = 0;
    this.wished = DEFAULTS; // with what the kind cannot take just now
    this.settings = DEFAULTS;
    /** @type {import("./settings.js").Model | null} */
    this.model = null;
    /** @type {{answer: any, asked: any} | null} */
    this.answered = null;
    /** @type {Map<number, AttentionMap>} the newest map of each sentence */
    this.maps = new Map();
    this.failed = false;
    this.drawn = ""; // the long sentence whose maps were asked for

    this.notices = new Notices(at("#notices"), () => this.retry());
    this.list = new SentenceList(at("#sentences"), {
      onText: (id, text) => this.#retype(id, text),
      onRemove: (id) => this.#remove(id),
      onChoose: (id, unit) => this.#choose(id, unit),
    });
    this.pickers = new Pickers(at("#pickers"), (change) => this.#set(change));
    this.opener = element("div", { className: "pickers" });
    this.matrixBox = element("div", {});
    this.matrix = new Matrix(this.matrixBox);
    this.curl = new Curl();
    at("#map .body").append(this.opener, this.matrixBox, this.curl.root);
    this.multiples = new Multiples(at("#heads .body"), (layer, head) => this.#show(layer, head));
    this.comparison = new Comparison(at("#comparison .body"));

    this.mapQuery = this.#query("v1/attend", ["#map", "#sentences"], (answer, asked) => this.#receive(answer, asked));
    this.headsQuery = this.#query("v1/attend", ["#heads"], (answer, asked) => {
      this.multiples.show(answer, asked.kind);
      this.#render();
    }, () => this.multiples.clear());
    this.compareQuery = this.#query("v1/compare", ["#comparison"], (answer, asked) => this.comparison.show(answer, asked),
      () => this.comparison.say(NOT_COMPUTED));

    at("#add").addEventListener("click", () => this.#add());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#repaint());
  }

  start() {
    this.#load();
    this.#ask(0);
    this.#render();
  }

  /** Ask everything again that went wrong. */
  retry() {
    if (!this.model) this.#load();
    this.#ask(0);
  }

  async #load() {
    try {
      this.model = await call("v1/model");
      this.notices.set("model", null);
      const { name, layer_count: layers, head_count: heads } = /** @type {any} */ (this.model);
      at("#model").textContent = `${name}, ${layers} layers, ${heads} heads`;
      this.#render();
    } catch (error) {
      this.notices.set("model", /** @type {any} */ (error));
    }
  }

  #query(route, /** @type {string[]} */ places, onAnswer, onFailure = () => {}) {
    const name = places[0];
    return new Query(route, {
      onBusy: (busy) => {
        for (const place of places) at(place).setAttribute("aria-busy", String(busy));
        if (name === "#map" && busy) this.#render();
      },
      onAnswer,
      onError: (error, asked) => {
        if (name === "#map") this.failed = error !== null;
        this.notices.set(name, error && ofSentences(error, asked, this.sentences.map(({ text }) => text)));
        if (!error) return;
        onFailure();
        this.#render();
      },
    });
  }

  #ask(/** @type {number} */ delay) {
    const filled = this.sentences.filter(hasWords);
    const texts = filled.map(({ text }) => text);
    this.mapQuery.ask(texts.length ? mapRequest(this.settings, texts) : null, delay);

    const opened = filled.find(({ id }) => id === this.open);
    const long = opened && opened.words.length > LONG_WORDS && opened.text !== this.drawn;
    this.headsQuery.ask(opened && !long ? everyHeadRequest(this.settings, opened.text) : null, delay);
    if (!opened) this.multiples.clear();
    if (long) this.multiples.offer(() => { this.drawn = opened.text; this.#ask(0); });

    this.#compare(filled, delay);
  }

  /** The chosen words of the sentences that have one; of one sentence alone, its word wherever it is. */
  #compare(/** @type {import("./choice.js").Sentence[]} */ filled, /** @type {number} */ delay) {
    const having = filled.flatMap(({ id, text, words, word }) => (word ? [{ id, text, words, word }] : []));
    const places = having.length === 1
      ? having.flatMap((one) => one.words.filter((word) => same(word, one.word)).map((word) => ({ ...one, word })))
      : having;
    const occurrences = places.slice(0, MOST_SENTENCES)
      .map(({ text, word: { start, end } }) => ({ text, span: [start, end] }));
    const enough = occurrences.length > 1;
    this.compareQuery.ask(enough ? { occurrences, layers: "all", draws_on: DRAWS_ON } : null, delay);
    const words = listed(chosenTexts(filled), " or ");
    const lacking = filled.filter(({ word }) => !word).map(({ id }) => `sentence ${this.#number(id)}`).join(", ");
    if (enough) this.comparison.about(places.map(({ id }) => this.#number(id)), lacking ? ["Left out, without ", ...words, `: ${lacking}.`] : []);
    else if (!lacking) this.comparison.say("Add a second sentence with the same word to see how far context moves it.");
    else this.comparison.say(`Only sentence ${this.#number(having[0].id)} has `, ...words, ". Write it into another sentence, or choose "
      + `a word there to compare it with: in ${lacking}.`);
  }

  #number(/** @type {number} */ id) {
    return this.sentences.findIndex((sentence) => sentence.id === id) + 1;
  }

  /** Why a sentence has no word that is looked at. */
  #note(/** @type {import("./choice.js").Sentence} */ sentence) {
    if (sentence.word || !sentence.text.trim()) return [];
    if (!hasWords(sentence)) return ["There is no word in this sentence, so there is nothing to show."];
    return ["There is no ", ...listed(chosenTexts(this.sentences), " or "), " in this sentence. Choose another of its words to compare it."];
  }

  #receive(answer, asked) {
    this.answered = { answer, asked };
    this.curl.show("v1/attend", asked);
    this.#read();
    this.#render();
  }

  /** Make the maps of what was answered; a sentence that has changed since keeps its older one. */
  #read() {
    if (!this.answered) return;
    const { answer, asked } = this.answered;
    for (const { id, text } of this.sentences) {
      const place = asked.inputs.indexOf(text);
      if (place >= 0) this.maps.set(id, new AttentionMap(answer.results[place], { ...asked, inputs: [text] }, this.settings.self));
      else if (!text.trim()) this.maps.delete(id);
    }
  }

  #render() {
    const sentences = new Map(this.sentences.map((sentence) => [sentence.id, sentence]));
    const readingOf = (/** @type {number} */ id) => {
      const sentence = /** @type {import("./choice.js").Sentence} */ (sentences.get(id));
      const newest = hasWords(sentence) ? this.maps.get(id) ?? null : null;
      const stale = newest !== null && !newest.answers(mapRequest(this.settings, [sentence.text]));
      // Older numbers stand, dimmed, only while newer ones are on their way.
      const map = stale && this.failed ? null : newest;
      const chosen = map && sentence.word ? map.unitOf(sentence.word) : -1;
      const note = !map && this.failed && hasWords(sentence) ? [NOT_COMPUTED] : this.#note(sentence);
      return { map, chosen, stale, note };
    };
    this.list.show(this.sentences, readingOf, this.open);
    at("#add").toggleAttribute("disabled", this.sentences.length >= MOST_SENTENCES);
    if (this.model) this.pickers.show(this.settings, this.model);

    const place = this.sentences.findIndex(({ id }) => id === this.open);
    const { map, chosen, stale } = readingOf(this.open);
    this.#renderOpener(place);
    at("#map").classList.toggle("stale", stale);
    this.matrixBox.hidden = this.curl.root.hidden = map === null;
    at("#scale").textContent = map?.scale ?? "";
    if (map) this.matrix.show(map, chosen, `Sentence ${place + 1}, ${map.view}`);
    this.multiples.mark(this.settings, headReason(this.settings) === "" && hasHeads(this.settings.kind));
  }

  /** The choice of the sentence whose whole map is shown, where there is one. */
  #renderOpener(/** @type {number} */ place) {
    const spelled = JSON.stringify([this.sentences.map(({ text }) => text), place]);
    if (this.opener.dataset.spelled === spelled) return;
    const held = this.opener.contains(document.activeElement);
    const options = this.sentences.map(({ id, text }, index) => ({ value: String(id), text: `${index + 1}. ${isolated(text)}` }));
    const picker = select("Sentence", options, String(this.open), (id) => {
      this.open = Number(id);
      this.#ask(0);
      this.#render();
    }, { id: "open" });
    this.opener.dataset.spelled = spelled;
    this.opener.hidden = this.sentences.length < 2;
    this.opener.replaceChildren(picker);
    if (held) picker.querySelector("select")?.focus();
  }

  #set(/** @type {Partial<import("./settings.js").Settings>} */ change) {
    this.wished = { ...this.wished, ...change };
    this.settings = settled(this.wished);
    if ("self" in change) this.#read();
    this.#ask(CHOOSING_MS);
    this.#render();
  }

  /** One layer and head, chosen among the pictures. */
  #show(/** @type {number} */ layer, /** @type {number} */ head) {
    const kind = hasHeads(this.settings.kind) ? this.settings.kind : "probs";
    this.#set({ kind, layer: String(layer), head: String(head) });
  }

  #retype(/** @type {number} */ id, /** @type {string} */ text) {
    this.#settle(this.sentences.map((sentence) => (sentence.id === id ? retyped(sentence, text) : sentence)), TYPING_MS);
  }

  #settle(/** @type {import("./choice.js").Sentence[]} */ sentences, /** @type {number} */ delay) {
    this.sentences = settledWords(sentences);
    this.#ask(delay);
    this.#render();
  }

  #choose(/** @type {number} */ id, /** @type {import("./attention.js").Unit} */ unit) {
    if (unit.special) return;
    this.open = id;
    this.#settle(chosenIn(this.sentences, id, unit), 0);
  }

  #add() {
    const id = this.made++;
    this.sentences = [...this.sentences, sentenceOf(id, "")];
    this.#render();
    this.list.focus(id);
  }

  #remove(/** @type {number} */ id) {
    const sentences = this.sentences.filter((sentence) => sentence.id !== id);
    this.maps.delete(id);
    if (this.open === id) this.open = sentences[0].id;
    this.#settle(sentences, 0);
    at("#add").focus();
  }

  /** Canvases take their colours when they are painted. */
  #repaint() {
    this.#read();
    this.headsQuery.forget();
    this.#ask(0);
    this.#render();
  }
}

function at(/** @type {string} */ selector) {
  return /** @type {HTMLElement} */ (document.querySelector(selector));
}

new Page().start();
