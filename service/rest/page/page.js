import { call } from "./api.js";
import { AttentionMap } from "./attention.js";
import { Comparison } from "./comparison.js";
import { Curl } from "./curl.js";
import { element, select } from "./element.js";
import { Matrix } from "./matrix.js";
import { Multiples } from "./multiples.js";
import { Notices } from "./notices.js";
import { Pickers } from "./pickers.js";
import { Query } from "./query.js";
import { SentenceList } from "./sentences.js";
import { DEFAULTS, everyHeadRequest, hasHeads, headReason, mapRequest, settled } from "./settings.js";
import { startingWords, wordsOf } from "./words.js";

const EXAMPLES = ["He cashed a check at the bank.", "They sat on the bank of the river."];
const MOST_SENTENCES = 64;
const LONG_WORDS = 64;
const DRAWS_ON = 5;
const TYPING_MS = 350;
const CHOOSING_MS = 80;

/** What is chosen, what is asked for it, and where the answers go. */
class Page {
  constructor() {
    /** @type {{id: number, text: string, chosen: import("./words.js").Word | null}[]} */
    this.sentences = EXAMPLES.map((text, id) => ({ id, text, chosen: null }));
    this.made = EXAMPLES.length;
    this.open = 0;
    this.settings = DEFAULTS;
    /** @type {import("./settings.js").Model | null} */
    this.model = null;
    /** @type {{answer: any, asked: any} | null} */
    this.answered = null;
    /** @type {Map<number, AttentionMap>} the newest map of each sentence */
    this.maps = new Map();
    this.waiting = false;
    this.failed = false;
    this.drawn = ""; // the long sentence whose maps were asked for

    this.notices = new Notices(at("#notices"), () => this.retry());
    this.list = new SentenceList(at("#sentences"), {
      onText: (id, text) => this.#change(id, { text }, TYPING_MS),
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
    });
    this.compareQuery = this.#query("v1/compare", ["#comparison"], (answer, asked) => this.comparison.show(answer, asked));

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

  #query(route, /** @type {string[]} */ places, onAnswer) {
    const name = places[0];
    return new Query(route, {
      onBusy: (busy) => {
        for (const place of places) at(place).setAttribute("aria-busy", String(busy));
        if (name === "#map") this.waiting = busy;
        if (name === "#map" && busy) this.#render();
      },
      onAnswer,
      onError: (error) => {
        if (name === "#map") this.failed = error !== null;
        this.notices.set(name, error);
        if (error) this.#render();
      },
    });
  }

  /** The sentences that say something, each with the word that is looked at. */
  #filled() {
    const words = this.sentences.map(({ text }) => wordsOf(text));
    const starting = startingWords(words);
    return this.sentences
      .map((sentence, place) => {
        const { text, chosen } = sentence;
        const kept = chosen && Array.from(text).slice(chosen.start, chosen.end).join("") === chosen.text;
        return { ...sentence, words: words[place], word: kept ? chosen : starting[place] };
      })
      .filter(({ word }) => word !== null);
  }

  #ask(/** @type {number} */ delay) {
    const filled = this.#filled();
    const texts = filled.map(({ text }) => text);
    this.mapQuery.ask(texts.length ? mapRequest(this.settings, texts) : null, delay);

    const opened = filled.find(({ id }) => id === this.open);
    const long = opened && opened.words.length > LONG_WORDS && opened.text !== this.drawn;
    this.headsQuery.ask(opened && !long ? everyHeadRequest(this.settings, opened.text) : null, delay);
    if (long) this.multiples.offer(() => { this.drawn = opened.text; this.#ask(0); });

    const occurrences = filled.map(({ text, word }) => ({ text, span: [word.start, word.end] }));
    const enough = occurrences.length > 1;
    this.compareQuery.ask(enough ? { occurrences, layers: "all", draws_on: DRAWS_ON } : null, delay);
    if (!enough) this.comparison.say("Add a second sentence with the same word to see how far context moves it.");
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
      if (place >= 0) this.maps.set(id, new AttentionMap(answer.results[place], asked, this.settings.self));
      else if (!text.trim()) this.maps.delete(id);
    }
  }

  #render() {
    const words = new Map(this.#filled().map(({ id, word }) => [id, word]));
    const readingOf = (/** @type {number} */ id) => {
      const map = words.has(id) ? this.maps.get(id) ?? null : null;
      const chosen = map ? map.unitAt(words.get(id)?.start ?? -1) : -1;
      return { map, chosen, stale: this.waiting || this.failed };
    };
    this.list.show(this.sentences, readingOf, this.open);
    at("#add").toggleAttribute("disabled", this.sentences.length >= MOST_SENTENCES);
    if (this.model) this.pickers.show(this.settings, this.model);

    const place = this.sentences.findIndex(({ id }) => id === this.open);
    const { map, chosen } = readingOf(this.open);
    this.#renderOpener(place);
    at("#map").classList.toggle("stale", this.waiting || this.failed);
    this.matrixBox.hidden = map === null;
    at("#scale").textContent = map?.scale ?? "";
    if (map) this.matrix.show(map, chosen, `Sentence ${place + 1}, ${map.view}`);
    this.multiples.mark(this.settings, headReason(this.settings) === "" && hasHeads(this.settings.kind));
  }

  /** The choice of the sentence whose whole map is shown, where there is one. */
  #renderOpener(/** @type {number} */ place) {
    const spelled = JSON.stringify([this.sentences.map(({ text }) => text), place]);
    if (this.opener.dataset.spelled === spelled) return;
    const held = this.opener.contains(document.activeElement);
    const options = this.sentences.map(({ id, text }, index) => ({ value: String(id), text: `${index + 1}. ${text}` }));
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
    this.settings = settled({ ...this.settings, ...change });
    if ("self" in change) this.#read();
    this.#ask(CHOOSING_MS);
    this.#render();
  }

  /** One layer and head, chosen among the pictures. */
  #show(/** @type {number} */ layer, /** @type {number} */ head) {
    const kind = hasHeads(this.settings.kind) ? this.settings.kind : "probs";
    this.#set({ kind, layer: String(layer), head: String(head) });
  }

  #change(/** @type {number} */ id, change, delay = 0) {
    this.sentences = this.sentences.map((sentence) => (sentence.id === id ? { ...sentence, ...change } : sentence));
    this.#ask(delay);
    this.#render();
  }

  #choose(/** @type {number} */ id, /** @type {import("./attention.js").Unit} */ unit) {
    if (unit.special) return;
    this.open = id;
    this.#change(id, { chosen: { text: unit.text, start: unit.start, end: unit.end } });
  }

  #add() {
    const id = this.made++;
    this.sentences = [...this.sentences, { id, text: "", chosen: null }];
    this.#render();
    this.list.focus(id);
  }

  #remove(/** @type {number} */ id) {
    this.sentences = this.sentences.filter((sentence) => sentence.id !== id);
    this.maps.delete(id);
    if (this.open === id) this.open = this.sentences[0].id;
    this.#ask(0);
    this.#render();
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
