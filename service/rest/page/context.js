import { AttentionMap } from "./attention.js";
import { Causes } from "./causes.js";
import {
  createSentence, hasPair, hasWords, inputOf, selectWords, withChoice, withPair, withText,
} from "./choice.js";
import { Comparison, TOP_CONTRIBUTORS, vectorInputs } from "./comparison.js";
import { areAllPairs, describeCoverage, explainMissingWord, findPlaces } from "./coverage.js";
import { find } from "./element.js";
import { createExample, ExampleChips, exampleOf, EXAMPLES } from "./examples.js";
import { Explore } from "./explore.js";
import { inputKey, truncate } from "./faults.js";
import { decodeTensor } from "./number.js";
import { LayerPlayer } from "./player.js";
import { queryMaker } from "./query.js";
import { senseOf } from "./senses.js";
import { SentenceList } from "./sentences.js";
import { compatible, DEFAULTS, hasMaps, mapRequest } from "./settings.js";
import { unreadWords } from "./unknown.js";
import { same, wordsOf } from "./words.js";

const MOST_SENTENCES = 64;
const MOST_POINTS = 16; // occurrences in the picture
const TYPING_MS = 350;
const CHOOSING_MS = 80;
const NOT_COMPUTED = "Not computed. See the message at the top of the page.";

/** The tab "Word in context": sentences, their comparison, and the exploration of layers and heads. */
export class ContextView {
  /**
   * @param {import("./notices.js").Notices} notices
   * @param {() => void} onChange called when the state changes
   * @param {(place: Partial<import("./walkthrough.js").WalkState>) => void} onFollow called for a place of the walkthrough
   */
  constructor(notices, onChange, onFollow) {
    this.onChange = onChange;
    this.notices = notices;
    this.sentences = createExample(EXAMPLES[0], 0);
    this.nextId = this.sentences.length;
    this.open = 0;
    this.requested = DEFAULTS; // may be incompatible with the current kind
    this.settings = DEFAULTS;
    /** @type {import("./settings.js").Model | null} */
    this.model = null;
    /** @type {{response: any, request: any} | null} */
    this.latest = null;
    /** @type {Map<number, AttentionMap>} latest map per sentence */
    this.maps = new Map();
    /** @type {Map<string, import("./api.js").ApiError>} why the server rejected an input, by the input */
    this.rejected = new Map();
    /** @type {Map<string, any[]>} tokens by input */
    this.tokens = new Map();
    /** @type {Set<import("./examples.js").Example>} examples whose word the model does not know */
    this.unknown = new Set();
    this.unfolded = "false,false";
    this.failed = false;
    this.busy = false;

    this.chips = new ExampleChips(find("#examples"), (example) => this.#load(example));
    this.list = new SentenceList(find("#sentences"), {
      onText: (id, text) => this.#edit(id, (sentence) => withText(sentence, text)),
      onPair: (id, pair) => this.#edit(id, (sentence) => withPair(sentence, pair)),
      onSense: (id, name) => this.#edit(id, (sentence) =>
        ({ ...sentence, sense: name && sentence.word ? { name, word: sentence.word.text } : null })),
      onRemove: (id) => this.#remove(id),
      onChoose: (id, unit) => this.#choose(id, unit),
      onTruncate: (id) => this.#truncate(id),
    });
    this.player = new LayerPlayer(find("#player"), (layer) => this.#set({ layer }, 0));
    this.comparison = new Comparison(
      { finding: find("#finding"), figures: find("#claim .body"), numbers: find("#comparison") }, () => this.onChange());
    const query = queryMaker(notices, {
      nameOf: (item) => {
        const place = this.sentences.findIndex((sentence) => JSON.stringify(inputOf(sentence)) === inputKey(item));
        return place < 0 ? "" : `Sentence ${place + 1}`;
      },
      onTooLong: (item, list, error) => {
        this.rejected.set(inputKey(item), error);
        this.#refresh(0);
      },
    });
    this.explore = new Explore(/** @type {HTMLDetailsElement} */ (find("#explore")), {
      onSettings: (change) => this.#set(change),
      onOpen: (id) => { this.open = id; this.removed = null; this.#update(0); },
      onToggle: () => this.#toggle(),
      onFollow: (place) => onFollow({ ...place, second: this.sentences.find(({ id }) => id !== this.open)?.text ?? "" }),
      query,
    });
    /** @type {number | null} place of the removed word in the open sentence */
    this.removed = null;
    this.causes = new Causes(/** @type {HTMLDetailsElement} */ (find("#causes")), {
      onToggle: () => this.#toggle(),
      onRemove: (place) => { this.removed = place; this.#update(0); },
      query,
    });
    this.mapQuery = query("v1/attend", ["#map", "#sentences"], {
      onBusy: (busy) => { this.busy = busy; if (busy) this.#render(); },
      onResponse: (response, request) => this.#receive(response, request),
      onFailure: (failed) => { this.failed = failed; if (failed) this.#render(); },
    });
    this.tokensQuery = query("v1/tokenize", ["#sentences"], {
      onResponse: ({ results }, { inputs }) => {
        inputs.forEach((input, place) => this.tokens.set(JSON.stringify(input), results[place].tokens));
        this.#render();
      },
    });
    this.examplesQuery = query("v1/tokenize", ["#examples"], { onResponse: (response) => this.#checkExamples(response) });
    this.compareQuery = query("v1/compare", ["#claim"], {
      onResponse: (response, request) => this.comparison.show(response, request),
      onFailure: (failed) => failed && this.comparison.showMessage(NOT_COMPUTED),
    });
    this.vectorsQuery = query("v1/encode", ["#claim .body"], {
      onResponse: (response, { inputs }) => this.comparison.showVectors(byLayer(response), inputs),
      onFailure: (failed) => failed && this.comparison.plane.clear(),
    });
    find("#add").addEventListener("click", () => this.#add());
    find("#clear").addEventListener("click", () => this.#clear());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#repaint());
  }

  /** Send the requests of the view, also those that failed. */
  start() {
    this.#requestExamples();
    this.#refresh(0);
  }

  /** Ask for the tokens of the examples, to remove those whose word the model does not know. */
  #requestExamples() {
    const model = this.model;
    if (!model || !hasMaps(model) || model.unknown_token_id === null) return this.examplesQuery.request(null);
    this.examplesQuery.request({ inputs: EXAMPLES.map(({ sentences: [first] }) => first.text) });
  }

  setModel(/** @type {import("./settings.js").Model} */ model) {
    if (this.model && this.model.name !== model.name) {
      this.latest = null;
      for (const results of [this.maps, this.rejected, this.tokens, this.unknown]) results.clear();
    }
    this.model = model;
    this.#requestExamples();
    this.#refresh(0);
  }

  /** The state of the view, for a link. */
  get state() {
    const { sentences, open, settings, requested, comparison: { measure }, explore: { isOpen }, causes, removed } = this;
    return {
      sentences, open: sentences.findIndex(({ id }) => id === open), settings: isOpen ? settings : requested, measure, explore: isOpen, causes: causes.isOpen, removed,
    };
  }

  /** Show the state of a link. */
  restore(/** @type {typeof this.state} */ { sentences, open, settings, measure, explore, causes, removed }) {
    this.sentences = selectWords(sentences.map((sentence, place) => ({ ...sentence, id: this.nextId + place })));
    this.open = this.nextId + open;
    this.nextId += sentences.length;
    this.maps.clear();
    this.requested = settings;
    this.comparison.setMeasure(measure);
    this.explore.root.open = explore;
    this.causes.root.open = causes;
    this.unfolded = this.#unfolded();
    this.removed = removed;
    this.#refresh(0);
    this.#reread();
  }

  #request(/** @type {number} */ delay) {
    if (this.model === null) return;
    const filled = this.sentences.filter((sentence) => hasMaps(this.model) && hasWords(sentence) && !this.#faultOf(sentence));
    this.#compare(filled, delay); // first, because the page opens with its result
    this.mapQuery.request(filled.length ? mapRequest(this.settings, filled.map(inputOf)) : null, delay);
    this.explore.requestHeads(filled, this.open, this.settings, delay);
    this.tokensQuery.request(filled.length ? { inputs: filled.map(inputOf) } : null, delay);
  }

  /** Compare the selected words, or all occurrences of the word of a single sentence. */
  #compare(/** @type {import("./choice.js").Sentence[]} */ filled, /** @type {number} */ delay) {
    const single = filled.filter((sentence) => !hasPair(sentence));
    const { selected, places } = findPlaces(single);
    const opened = filled.find(({ id }) => id === this.open);
    this.causes.update(opened, places.filter(({ id }) => id !== this.open), delay);
    const shown = places.slice(0, MOST_SENTENCES);
    const occurrences = shown.map(({ text, word: { start, end } }) => ({ text, span: [start, end] }));
    const enough = occurrences.length > 1;
    // Before the requests, because a kept response is shown at once.
    const { notes, message } = describeCoverage({
      model: this.model, sentences: this.sentences, filled, single, selected,
      isRejected: (sentence) => Boolean(this.#faultOf(sentence)), numberOf: (id) => this.#number(id),
    });
    if (enough) this.comparison.setSentences(shown.map(({ id }) => this.#number(id)), shown.map(senseOf), notes);
    else this.comparison.showMessage(...message);
    this.compareQuery.request(enough ? { occurrences, layers: "all", top_contributors: TOP_CONTRIBUTORS } : null, delay);
    const inPicture = enough && occurrences.length <= MOST_POINTS && this.model?.outputs.includes("spans");
    this.vectorsQuery.request(inPicture ? {
      inputs: vectorInputs(occurrences),
      prompt: "", outputs: ["spans"], layers: "all", layer_reduce: "stack", encoding_format: "base64", dtype: "float16",
    } : null, delay);
    if (!inPicture) this.comparison.plane.clear();
  }

  /** Return why the server rejected a sentence, if it did. */
  #faultOf(/** @type {import("./choice.js").Sentence} */ sentence) {
    return this.rejected.get(JSON.stringify(inputOf(sentence)));
  }

  async #truncate(/** @type {number} */ id) {
    const sentence = this.sentences.find((other) => other.id === id);
    const error = sentence && this.#faultOf(sentence);
    if (!error) return this.notices.set("truncate", null);
    try {
      const [text, pair] = await truncate(inputOf(sentence), error, { prompt: "" });
      this.notices.set("truncate", null);
      this.#edit(id, (current) => (current.text !== sentence.text || current.pair !== sentence.pair ? current
        : pair === undefined ? withText(current, text) : withPair(withText(current, text), pair)));
    } catch (failure) {
      this.notices.set("truncate", /** @type {any} */ (failure), () => this.#truncate(id));
    }
  }

  /** Remove the examples whose word the model does not know. If one of them is shown, ask for sentences instead. */
  #checkExamples({ results }) {
    const model = this.model;
    this.unknown = new Set(EXAMPLES.filter(({ word, sentences: [{ text }] }, place) => {
      const words = wordsOf(text).filter((other) => same(other, { text: word })).map((other) => ({ ...other, segment: 0 }));
      return unreadWords(words, results[place].tokens, model?.unknown_token_id ?? null).unknown.length;
    }));
    const shown = exampleOf(this.sentences);
    if (shown && this.unknown.has(shown)) this.#replace(this.#blank());
    else this.#render();
  }

  /** Return two sentences without text. */
  #blank() {
    return [createSentence(this.nextId, ""), createSentence(this.nextId + 1, "")];
  }

  #number(/** @type {number} */ id) {
    return this.sentences.findIndex((sentence) => sentence.id === id) + 1;
  }

  #receive(response, request) {
    this.latest = { response, request };
    this.explore.request.show("attend", request);
    this.#read();
    this.#render();
  }

  /** Create the maps of the latest response. A sentence that has changed since then keeps its previous map. */
  #read() {
    if (!this.latest) return;
    const { response, request } = this.latest;
    const inputs = request.inputs.map((input) => JSON.stringify(input));
    const options = { self: this.settings.self, isInput: this.settings.layer === 0 };
    for (const sentence of this.sentences) {
      const input = inputOf(sentence);
      const place = inputs.indexOf(JSON.stringify(input));
      if (place >= 0) this.maps.set(sentence.id, new AttentionMap(response.results[place], { ...request, inputs: [input] }, options));
      else if (!sentence.text.trim()) this.maps.delete(sentence.id);
    }
  }

  /** Create the maps again, after a change that needs no request. */
  #reread() {
    this.#read();
    this.#render();
  }

  #viewOf(/** @type {import("./choice.js").Sentence} */ sentence) {
    const fault = this.#faultOf(sentence);
    const newest = hasWords(sentence) && !fault ? this.maps.get(sentence.id) ?? null : null;
    const stale = newest !== null && !newest.isResultOf(mapRequest(this.settings, [inputOf(sentence)]));
    // Show outdated values, dimmed, only while a request is pending.
    const map = stale && this.failed ? null : newest;
    const chosen = map && sentence.word ? map.unitOf(sentence.word) : -1;
    const note = fault ? [] : !map && this.failed && hasWords(sentence) ? [NOT_COMPUTED] : explainMissingWord(sentence, this.sentences);
    const unread = unreadWords(sentence.words, this.tokens.get(JSON.stringify(inputOf(sentence))) ?? null, this.model?.unknown_token_id ?? null);
    return { map, chosen, stale, note, unread, sense: senseOf(sentence), fault };
  }

  #render() {
    const views = new Map(this.sentences.map((sentence) => [sentence.id, this.#viewOf(sentence)]));
    const viewOf = (/** @type {number} */ id) => /** @type {import("./sentences.js").View} */ (views.get(id));
    this.list.show(this.sentences, viewOf, this.open);
    this.chips.show(this.sentences, this.unknown);
    find("#add").toggleAttribute("disabled", this.sentences.length >= MOST_SENTENCES);
    const count = this.model?.num_hidden_layers ?? 0;
    find("#explore").hidden = this.model !== null && !hasMaps(this.model);
    find("#player").hidden = !hasMaps(this.model) || !this.sentences.some(hasWords);
    this.player.show(this.settings.layer ?? count, count, this.busy);
    this.comparison.setLayer(this.settings.layer);
    const { sentences, open, settings, model } = this;
    const others = this.causes.others ?? [];
    const opened = sentences.find(({ id }) => id === open);
    const { map, stale } = viewOf(open);
    find("#causes").hidden = find("#explore").hidden;
    this.causes.show({
      layer: settings.layer, senses: [opened, ...others].map((sentence) => sentence ? senseOf(sentence) : null), removed: this.removed,
      number: this.#number(open), numbers: others.map(({ id }) => this.#number(id)), map: stale ? null : map,
      isExploring: this.explore.isOpen,
    });
    this.explore.show({ sentences, open, settings, model, pairs: areAllPairs(this.sentences), ...viewOf(open) });
  }

  /** Send the requests that the state needs, and render. */
  #refresh(/** @type {number} */ delay) {
    this.settings = compatible(this.requested, { model: this.model, pairs: areAllPairs(this.sentences), exploring: this.explore.isOpen });
    this.#request(delay);
    this.#render();
  }

  /** Refresh the view after a change by the user, and report it. */
  #update(/** @type {number} */ delay) {
    this.#refresh(delay);
    this.onChange();
  }

  #unfolded() {
    return [this.explore.isOpen, this.causes.isOpen].join();
  }

  /** Update the view after a part has been folded or unfolded. Browsers report it later, also if a link did it. */
  #toggle() {
    if (this.unfolded === this.#unfolded()) return;
    this.unfolded = this.#unfolded();
    this.#update(0);
  }

  #set(/** @type {Partial<import("./settings.js").Settings>} */ change, delay = CHOOSING_MS) {
    if ("combine" in change || "kind" in change) this.player.stop();
    this.requested = { ...this.requested, ...change };
    this.#update(delay);
    if ("self" in change || "layer" in change) this.#reread();
  }

  #edit(/** @type {number} */ id, /** @type {(sentence: import("./choice.js").Sentence) => import("./choice.js").Sentence} */ change) {
    this.#settle(this.sentences.map((sentence) => (sentence.id === id ? change(sentence) : sentence)), TYPING_MS);
  }

  #settle(/** @type {import("./choice.js").Sentence[]} */ sentences, /** @type {number} */ delay) {
    this.sentences = selectWords(sentences);
    this.removed = null;
    this.#update(delay);
  }

  #choose(/** @type {number} */ id, /** @type {import("./attention.js").Unit} */ unit) {
    if (unit.special) return;
    this.open = id;
    this.#settle(withChoice(this.sentences, id, unit), 0);
  }

  #replace(/** @type {import("./choice.js").Sentence[]} */ sentences) {
    this.open = sentences[0].id;
    this.nextId += sentences.length;
    this.maps.clear();
    this.#settle(sentences, 0);
    this.#reread();
  }

  #load(/** @type {import("./examples.js").Example} */ example) {
    if (example.explore) this.explore.root.open = true;
    this.#replace(createExample(example, this.nextId));
  }

  #clear() {
    const first = this.nextId;
    this.#replace(this.#blank());
    this.list.focus(first);
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
    this.explore.reset();
    this.comparison.redraw();
    this.#update(0);
    this.#reread();
  }
}

/** Return the vectors of the span of each input, by layer and input. */
function byLayer(response) {
  const vectors = response.results.map(({ span_vectors: spans }) => decodeTensor(spans));
  return vectors[0].map((_, layer) => vectors.map((layers) => layers[layer][0]));
}
