import { button, element, select } from "./element.js";
import { formula } from "./formula.js";
import { Glossary } from "./glossary.js";
import { rolesOf } from "./heads.js";
import { bdi } from "./naming.js";
import { decodeTensor } from "./number.js";
import { queryMaker } from "./query.js";
import { RequestPanel } from "./request.js";
import { hasMaps, headNamesRequest } from "./settings.js";
import { roleName, STEPS } from "./steps.js";
import { same } from "./words.js";

const TYPING_MS = 350;
const NAMED_TOKENS = 96; // longer texts get no names of heads
const OUTPUTS = ["input", "normalized", "queries", "keys", "values", "scores", "weights", "heads", "projected", "residual", "feed_forward", "output"];
const STATIC_STEP = 1;
const ARROWS = { ArrowLeft: -1, ArrowRight: 1 };

/**
 * @typedef {{text: string, pair: string | null, second: string, start: number, segment: number, layer: number, head: number | null,
 *            step: number}} WalkState  `start`: of the followed token, in characters; `head`: null selects one
 */

/** @type {WalkState} */
export const OPENING = {
  text: "money bank grows", pair: null, second: "river bank flows", start: 6, segment: 0, layer: 1, head: null, step: 0,
};

/** @type {{label: string, text: string, second: string, start: number}[]} */
const EXAMPLES = [
  { label: "bank: money, river", text: OPENING.text, second: OPENING.second, start: OPENING.start },
  { label: "bank in sentences", text: "He cashed a check at the bank.", second: "They sat on the bank of the river.", start: 25 },
  { label: "it", text: "The dog ran away because it was afraid.", second: "The door creaked because it was rusty.", start: 25 },
];

/** The tab "How attention works": one token, one layer, one head, a step at a time. */
export class Walkthrough {
  /**
   * @param {HTMLElement} root
   * @param {import("./notices.js").Notices} notices
   * @param {() => void} onChange called when the state changes
   */
  constructor(root, notices, onChange) {
    this.onChange = onChange;
    /** @type {WalkState} */
    this.state = OPENING;
    this.active = false;
    /** @type {any} */
    this.model = null;
    this.switches = { causal: false, unscaled: false };
    this.forget();

    this.glossary = new Glossary();
    this.chips = EXAMPLES.map(({ label: name, ...example }) => ({ example, chip: button(name, () => this.open(example), { className: "chip" }) }));
    const field = (/** @type {string} */ id, /** @type {(text: string) => void} */ onText) => {
      const input = element("input", { id, type: "text", autocomplete: "off", spellcheck: false, dir: "auto", on: { input: () => onText(input.value) } });
      return input;
    };
    this.text = field("walk-text", (text) => this.#edit({ text, start: this.#moved(text) }));
    this.second = field("walk-second", (second) => this.#edit({ second }));
    this.pair = element("p", { className: "quiet" });
    this.fault = element("p", { className: "fault", role: "alert", hidden: true });
    this.tokenBox = element("div", { className: "units", role: "group", "aria-label": "Token to follow" });
    this.pickers = element("div", { className: "inline" });
    this.slider = element("input", {
      id: "step", type: "range", min: "1", max: String(STEPS.length), step: "1", on: { input: () => this.#go(Number(this.slider.value) - 1) },
    });
    this.output = element("output", { htmlFor: "step" });
    this.back = button("Back", () => this.#go(this.state.step - 1));
    this.next = button("Next", () => this.#go(this.state.step + 1));
    this.card = element("section", { id: "walk-step", "aria-labelledby": "walk-title", tabIndex: -1 });
    this.request = new RequestPanel();
    root.append(
      element("div", { className: "chips", role: "group", "aria-label": "Examples" }, ...this.chips.map(({ chip }) => chip)),
      element("div", { className: "texts" },
        element("div", { className: "sentence" }, element("label", { htmlFor: "walk-text" }, "Sentence"), this.text, this.pair, this.fault,
          this.tokenBox),
        element("div", { className: "sentence" }, element("label", { htmlFor: "walk-second" }, "Second sentence with the word, for steps 2 and 13"), this.second)),
      element("div", { className: "player", id: "walk-player" }, this.back, this.next, element("label", { htmlFor: "step" }, "Step"), this.slider, this.output,
        this.pickers),
      this.card, this.request.root, this.glossary.root,
    );
    root.addEventListener("keydown", (event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      if (!(event.key in ARROWS) || event.ctrlKey || event.altKey || event.metaKey || target.matches("input, select, textarea, .scroller")) return;
      event.preventDefault();
      this.#go(this.state.step + ARROWS[event.key]);
    });

    const query = queryMaker(notices, {
      nameOf: (item) => (item === this.state.second ? "The second sentence" : "The sentence"),
      onTooLong: (item, list, error) => this.#reject(error),
    });
    const onFailure = (/** @type {boolean} */ failed) => { if (failed) this.#render(); };
    this.tokensQuery = query("v1/tokenize", ["#walk-step"], { onResponse: (response, request) => this.#receiveTokens(response, request), onFailure });
    this.outputsQuery = query("v1/attend", ["#walk-step"], { onResponse: (response, request) => this.#receiveOutputs(response, request), onFailure });
    this.rolesQuery = query("v1/attend", ["#walk-player"], {
      onResponse: (response) => { this.roles = rolesOf(response); this.#render(); }, onFailure: () => {},
    });
    this.encodeQuery = query("v1/encode", ["#walk-step"], { onResponse: (response, request) => this.#receiveEmbeddings(response, request), onFailure });
    this.compareQuery = query("v1/compare", ["#walk-step"], { onResponse: (response, request) => this.#receiveJourney(response, request), onFailure });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#render());
  }

  /** Forget the results of the current model. */
  forget() {
    /** @type {import("./steps.js").Token[]} */
    this.tokens = [];
    /** @type {import("./steps.js").Token[]} */
    this.others = [];
    this.tokenized = "";
    // Each result with the request that it answers, `of`.
    /** @type {any} */
    this.outputs = null;
    /** @type {Map<string, import("./heads.js").Role>} */
    this.roles = new Map();
    /** @type {any} */
    this.embeddings = null;
    /** @type {any} */
    this.journey = null;
  }

  setModel(/** @type {any} */ model) {
    if (this.model && this.model.name !== model.name) {
      this.forget();
      this.state = { ...this.state, layer: Math.min(this.state.layer, model.num_hidden_layers), head: null };
    }
    this.model = model;
    this.start();
  }

  setActive(/** @type {boolean} */ active) {
    this.active = active;
    this.start();
  }

  /** Send the requests of the view, also those that failed. */
  start() {
    this.#refresh(0);
  }

  restore(/** @type {WalkState | null} */ state) {
    this.state = state ?? OPENING;
    this.#refresh(0);
  }

  /** Follow a token, from its place in a text. */
  open(/** @type {Partial<WalkState>} */ place) {
    this.#edit({ pair: null, segment: 0, layer: 1, head: null, ...place }, 0);
  }

  #edit(/** @type {Partial<WalkState>} */ change, delay = TYPING_MS) {
    this.state = { ...this.state, ...change };
    this.#refresh(delay);
    this.onChange();
  }

  /** Return the place of the followed token after an edit of the text. */
  #moved(/** @type {string} */ text) {
    const { start } = this.state;
    const [old, characters] = [Array.from(this.state.text), Array.from(text)];
    const growth = characters.length - old.length;
    const isBefore = old.slice(start).join("") === characters.slice(start + growth).join("");
    return isBefore && start + growth >= 0 ? start + growth : start;
  }

  #go(/** @type {number} */ step) {
    this.#edit({ step: Math.max(0, Math.min(STEPS.length - 1, step)) }, 0);
  }

  get #isSupported() {
    return hasMaps(this.model) && this.model.layer_outputs?.length > 0 && this.model.layer_form;
  }

  #input() {
    const { text, pair } = this.state;
    return pair === null ? text : { text, pair };
  }

  #reject(/** @type {import("./api.js").ApiError} */ error) {
    this.fault.textContent = error.message;
    this.fault.hidden = false;
    this.outputs = null;
    this.#render();
  }

  /** Send the requests that the state needs, and render. */
  #refresh(/** @type {number} */ delay) {
    if (this.active && this.model && this.#isSupported) {
      const { text, second } = this.state;
      const inputs = [...(text.trim() ? [this.#input()] : []), ...(text.trim() && second.trim() ? [second] : [])];
      this.fault.hidden = true;
      this.tokensQuery.request(inputs.length ? { inputs } : null, delay);
      if (!inputs.length) this.forget();
      if (JSON.stringify(inputs) === this.tokenized) this.#follow(delay);
    }
    this.#render();
  }

  #receiveTokens(response, request) {
    this.tokenized = JSON.stringify(request.inputs);
    this.tokens = response.results[0].tokens;
    this.others = response.results[1]?.tokens ?? [];
    this.#follow(0);
    this.#render();
  }

  get #row() {
    const { start, segment } = this.state;
    const inside = this.tokens.findIndex((token) => !token.special && token.segment === segment && token.start <= start && start < token.end);
    const place = inside >= 0 ? inside : this.tokens.findIndex((token) => !token.special && token.segment === segment && token.start >= start);
    return place >= 0 ? place : this.tokens.findIndex((token) => !token.special);
  }

  /** Return the place of the followed token in the other sentence, or -1. */
  get #otherRow() {
    const token = this.tokens[this.#row];
    const equal = this.others.findIndex(({ id, special }) => token && !special && id === token.id);
    return equal >= 0 ? equal : this.others.findIndex((other) => token && !other.special && same(other, token));
  }

  /** Whether the other sentence has the followed token. A word of a pair cannot be compared. */
  get #isComparable() {
    return this.#otherRow >= 0 && this.state.pair === null;
  }

  #outputsRequest() {
    return { inputs: [this.#input()], outputs: OUTPUTS, rows: [this.#row], layers: [this.state.layer], encoding_format: "base64" };
  }

  #encodeRequest() {
    if (this.state.step !== STATIC_STEP || !this.model.outputs.includes("static")) return null;
    const inputs = [this.#input(), ...(this.#otherRow >= 0 ? [this.state.second] : [])];
    return { inputs, outputs: ["static", "tokens"], layers: [0], encoding_format: "base64" };
  }

  #compareRequest() {
    if (!this.#isComparable) return null;
    const occurrence = (/** @type {string} */ text, /** @type {import("./steps.js").Token} */ { start, end }) => ({ text, span: [start, end] });
    const { text, second } = this.state;
    return { occurrences: [occurrence(text, this.tokens[this.#row]), occurrence(second, this.others[this.#otherRow])], layers: "all" };
  }

  #rolesRequest() {
    const isShort = this.tokens.length <= NAMED_TOKENS && this.others.length <= NAMED_TOKENS;
    return isShort ? headNamesRequest([this.#input(), ...(this.others.length ? [this.state.second] : [])]) : null;
  }

  /** Request the results for the followed token. */
  #follow(/** @type {number} */ delay) {
    if (this.#row < 0) return;
    this.outputsQuery.request(this.#outputsRequest(), delay);
    this.rolesQuery.request(this.#rolesRequest(), delay);
    this.encodeQuery.request(this.#encodeRequest(), delay);
    this.compareQuery.request(this.#compareRequest(), delay);
  }

  #receiveOutputs(response, request) {
    const [result] = response.results;
    const values = Object.fromEntries(OUTPUTS.map((name) => [name, decodeTensor(result.layer_outputs[0][name])]));
    this.outputs = { values, of: JSON.stringify(request) };
    this.request.show("attend", request);
    this.#render();
  }

  #receiveEmbeddings(response, request) {
    const places = [this.#row, this.#otherRow];
    const vectors = (/** @type {string} */ name) => response.results.map((result, index) => decodeTensor(result[name])[places[index]]);
    this.embeddings = { values: { static: vectors("static_vectors"), input: vectors("token_vectors") }, of: JSON.stringify([request, places]) };
    this.#render();
  }

  #receiveJourney(response, request) {
    this.journey = { values: response.layers.map(({ cosine }) => cosine[0][1]), of: JSON.stringify(request) };
    this.#render();
  }

  /**
   * Return the head of the state, or one that shows something: the largest weight of another token of the text is nearest
   * to a half, so that several tokens count.
   */
  get #head() {
    const { head } = this.state;
    if (head !== null && head < this.model.num_attention_heads) return head;
    const row = this.#row;
    const best = this.outputs.values.weights.map(([own]) => Math.max(0, ...own.filter((_, place) => place !== row && !this.tokens[place]?.special)));
    const distances = best.map((weight) => Math.abs(weight - 0.5));
    return distances.indexOf(Math.min(...distances));
  }

  #render() {
    const { text, second, pair, step } = this.state;
    // Assigning an equal value would move the caret.
    if (this.text.value !== text) this.text.value = text;
    if (this.second.value !== second) this.second.value = second;
    this.pair.hidden = pair === null;
    this.pair.replaceChildren("Second text of the pair: ", bdi(pair ?? ""), " ", button("Remove", () => this.#edit({ pair: null, segment: 0 }, 0), { className: "plain" }));
    for (const { example, chip } of this.chips) chip.setAttribute("aria-pressed", String(example.text === text && example.second === second && pair === null));
    this.slider.value = String(step + 1);
    this.slider.setAttribute("aria-valuetext", `${step + 1} of ${STEPS.length}: ${STEPS[step].title}`);
    this.output.textContent = `${step + 1} of ${STEPS.length}`;
    this.back.disabled = step === 0;
    this.next.disabled = step === STEPS.length - 1;
    const isSupported = !this.model || this.#isSupported;
    for (const part of [this.pickers, this.slider.parentElement]) part?.toggleAttribute("hidden", !isSupported);
    if (!isSupported) return this.card.replaceChildren(element("p", {}, this.#reason()));
    if (!this.tokens.length) return this.card.replaceChildren(element("p", { className: "quiet" }, text.trim() ? "" : "Type a sentence."));
    this.#drawTokens();
    if (this.outputs?.of !== JSON.stringify(this.#outputsRequest())) return;
    this.#drawPickers();
    this.#drawStep();
  }

  #reason() {
    return hasMaps(this.model)
      ? "An earlier version exported this model, without the graphs of this view. Export it again with attendant-model export."
      : "This model was exported without explanations, so the server cannot show its attention.";
  }

  #drawTokens() {
    const row = this.#row;
    const key = JSON.stringify([this.tokens, row]);
    if (this.tokenBox.dataset.key === key) return;
    const hadFocus = this.tokenBox.contains(document.activeElement);
    this.tokenBox.dataset.key = key;
    this.tokenBox.replaceChildren(...this.tokens.map(({ text, special, start, segment }, place) => element("button", {
      type: "button", className: `unit${special ? " special" : ""}`, disabled: special, "aria-pressed": String(place === row),
      on: { click: () => this.#edit({ start, segment }, 0) },
    }, element("span", { className: "text" }, bdi(text)))));
    if (hadFocus) /** @type {HTMLElement | null} */ (this.tokenBox.querySelector('[aria-pressed="true"]'))?.focus();
  }

  #drawPickers() {
    const { num_hidden_layers: layers, num_attention_heads: heads } = this.model;
    const [layer, head, names] = [this.state.layer, this.#head, this.#roleNames()];
    const key = JSON.stringify([layers, layer, head, names]);
    if (this.pickers.dataset.key === key) return;
    const focused = this.pickers.contains(document.activeElement) ? document.activeElement?.id : null;
    this.pickers.dataset.key = key;
    this.pickers.replaceChildren(
      select("Layer", Array.from({ length: layers }, (_, place) => ({ value: String(place + 1), text: `${place + 1} of ${layers}` })), String(layer),
        (value) => this.#edit({ layer: Number(value) }, 0), { id: "walk-layer" }),
      select("Head", Array.from({ length: heads }, (_, place) => ({ value: String(place), text: `${place}${names[place] ? `: ${names[place]}` : ""}` })), String(head),
        (value) => this.#edit({ head: Number(value) }, 0), { id: "walk-head" }),
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  #roleNames() {
    return Array.from({ length: this.model.num_attention_heads }, (_, head) => roleName(this.roles.get(`${this.state.layer}.${head}`)));
  }

  #drawStep() {
    const { step, layer } = this.state;
    const { title, draw } = STEPS[step];
    const focused = this.card.contains(document.activeElement) ? document.activeElement?.id : null;
    const places = [this.#row, this.#otherRow];
    const hasEmbeddings = this.embeddings?.of === JSON.stringify([this.#encodeRequest(), places]);
    const hasJourney = this.journey?.of === JSON.stringify(this.#compareRequest());
    const { say, formulas = [], figure, why } = draw({
      model: this.model, tokens: this.tokens, row: this.#row, layer, head: this.#head, outputs: this.outputs.values,
      roles: this.#roleNames(), other: this.#isComparable ? this.others[this.#otherRow].text : null,
      embeddings: hasEmbeddings ? this.embeddings.values : null, journey: hasJourney ? this.journey.values : null, switches: this.switches,
      onSwitch: (name, value) => { this.switches = { ...this.switches, [name]: value }; this.#render(); },
      term: (name, text) => this.glossary.term(name, text),
      onHead: (head) => this.#edit({ head }, 0),
      onLayer: (next) => this.#edit({ layer: next, step: next === 1 ? 0 : 2 }, 0),
    });
    this.card.replaceChildren(
      element("h2", { id: "walk-title" }, `${step + 1}. ${title}`),
      element("p", { className: "say", "aria-live": "polite" }, ...say),
      element("div", { className: "sides" },
        element("div", { className: "drawing" }, ...figure),
        element("div", {}, element("div", { className: "formulas" }, ...formulas.map(formula)),
          element("p", { className: "why" }, element("strong", {}, "Why? "), ...why))),
    );
    if (focused) document.getElementById(focused)?.focus();
  }
}
