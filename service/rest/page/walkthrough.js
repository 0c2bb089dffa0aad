import { withModel } from "./api.js";
import { inputOf } from "./choice.js";
import { button, element, select } from "./element.js";
import { FieldFault, inputKey, truncate } from "./faults.js";
import { formula } from "./formula.js";
import { Glossary } from "./glossary.js";
import { rolesOf } from "./heads.js";
import { bdi, unitText } from "./naming.js";
import { decodeTensor } from "./number.js";
import { queryMaker } from "./query.js";
import { RequestPanel } from "./request.js";
import { hasMaps, headNamesRequest } from "./settings.js";
import { rankHeads, roleName, STEPS } from "./steps.js";
import { same, wordsOf } from "./words.js";

const TYPING_MS = 350;
const NAMED_TOKENS = 96; // longer texts get no names of heads
const STATIC_STEP = 1;
const LAST_STEP = STEPS.length - 1;
const READ_WORDS = 5; // per layer
const LEGEND = "Blue cells are positive numbers, orange cells negative ones. Stronger colors mean larger numbers. Point at a cell to read its value.";
const OUTPUTS = ["input", "normalized", "queries", "keys", "values", "scores", "weights", "heads", "projected", "residual", "feed_forward", "output"];
const ARROWS = { ArrowLeft: -1, ArrowRight: 1 };

/**
 * @typedef {{text: string, pair: string | null, second: string, start: number, segment: number, layer: number, head: number | null,
 *            step: number}} WalkState  `start`: of the followed token, in characters; -n is the nth token that has no characters
 *   of its own, from 1; `head`: null selects one
 * @typedef {{query: import("./query.js").Query, wanted: string, of: string, values: any, failed: boolean}} Answer  `wanted`: the
 *   request that the state needs, `of`: the request that the values answer
 */

/** @type {WalkState} */
export const OPENING = {
  text: "money bank grows", pair: null, second: "river bank flows", start: 6, segment: 0, layer: 1, head: null, step: 0,
};

/** @type {{label: string, text: string, second: string, start: number, seek?: string}[]} `seek`: a word that the token refers to */
const EXAMPLES = [
  { label: "bank: money, river", text: OPENING.text, second: OPENING.second, start: OPENING.start },
  { label: "bank in sentences", text: "He cashed a check at the bank.", second: "They sat on the bank of the river.", start: 25 },
  { label: "it", text: "The dog ran away because it was afraid.", second: "The door creaked because it was rusty.", start: 25, seek: "dog" },
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
    this.notices = notices;
    /** @type {WalkState} */
    this.state = OPENING;
    this.active = false;
    /** @type {any} */
    this.model = null;
    this.switches = { causal: false, unscaled: false };
    this.target = -1; // the token that the search for heads looks for
    this.seek = ""; // the word for which an example wants the head that links it to the followed token
    /** @type {Map<string, import("./api.js").ApiError>} why the server rejected an input, by the input */
    this.rejected = new Map();

    const query = queryMaker(notices, {
      nameOf: (item) => (inputKey(item) === JSON.stringify(this.#input()) ? "The sentence" : "The second sentence"),
      onTooLong: (item, list, error) => {
        this.rejected.set(inputKey(item), error);
        this.#refresh(0);
      },
    });
    const answer = (/** @type {string} */ route, /** @type {string} */ place, /** @type {(response: any) => any} */ read) => {
      /** @type {Answer} */
      const created = {
        wanted: "", of: "", values: null, failed: false,
        query: query(route, [place, "#walk-step"], {
          onResponse: (response, request) => {
            Object.assign(created, { of: JSON.stringify(withModel(request)), values: read(response), failed: false });
            this.#refresh(0);
          },
          onFailure: (failed) => {
            created.failed = failed;
            if (failed) this.#render();
          },
        }),
      };
      return created;
    };
    this.answers = {
      tokens: answer("v1/tokenize", "#walk-tokens", ({ results }) => results.map(({ tokens }) => tokens)),
      outputs: answer("v1/attend", "#walk-outputs", ({ results: [{ layer_outputs: [outputs] }] }) =>
        Object.fromEntries(OUTPUTS.map((name) => [name, decodeTensor(outputs[name])]))),
      maps: answer("v1/attend", "#walk-maps", (response) => ({
        roles: rolesOf(response),
        maps: response.results[0].maps.map(({ layer, head, matrix }) => ({ layer, head, matrix: decodeTensor(matrix) })),
      })),
      embeddings: answer("v1/encode", "#walk-embeddings", ({ results }) => ({
        static: results.map((result) => decodeTensor(result.static_vectors)), input: results.map((result) => decodeTensor(result.token_vectors)),
      })),
      similarities: answer("v1/compare", "#walk-similarities", ({ layers }) => layers.map(({ cosine }) => cosine[0][1])),
      positions: answer("v1/attend", "#walk-positions", ({ results }) => results.map(({ layer_outputs: [{ position }] }) => decodeTensor(position))),
      words: answer("v1/fill-mask", "#walk-words", ({ results: [{ positions: [{ layers }] }] }) => layers),
    };
    this.#build(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#render());
  }

  #build(/** @type {HTMLElement} */ root) {
    this.glossary = new Glossary();
    this.chips = EXAMPLES.map(({ label: name, seek = "", ...example }) => ({ example, chip: button(name, () => this.open(example, seek), { className: "chip" }) }));
    const field = (/** @type {string} */ id, /** @type {(text: string) => void} */ onText) => {
      const input = element("input", { id, type: "text", autocomplete: "off", spellcheck: false, dir: "auto", on: { input: () => onText(input.value) } });
      return input;
    };
    this.text = field("walk-text", (text) => this.#edit({ text, start: movedWord(this.state, text) }));
    this.second = field("walk-second", (second) => this.#edit({ second }));
    this.textFault = new FieldFault([this.text], () => this.#truncate("text"));
    this.secondFault = new FieldFault([this.second], () => this.#truncate("second"));
    this.pair = element("p", { className: "quiet" });
    this.tokenBox = element("div", { className: "units", dir: "auto", role: "group", "aria-label": "Token to follow" });
    this.compared = element("p", { className: "quiet" });
    this.pickers = element("div", { className: "inline" });
    this.slider = element("input", {
      id: "step", type: "range", min: "1", max: String(STEPS.length), step: "1", on: { input: () => this.#go(Number(this.slider.value) - 1) },
    });
    this.output = element("output", { htmlFor: "step" });
    // Not disabled at the ends: a disabled button would lose the focus.
    this.back = button("Back", () => this.#go(this.state.step - 1));
    this.next = button("Next", () => this.#go(this.state.step + 1));
    this.player = element("div", { id: "walk-player", className: "player" }, this.back, this.next, element("label", { htmlFor: "step" }, "Step"), this.slider, this.output, this.pickers);
    this.heading = element("h2", { id: "walk-title" });
    this.say = element("p", { className: "say", "aria-live": "polite" });
    this.drawing = element("div", { className: "drawing" });
    this.formulas = element("div", { className: "formulas" });
    this.symbols = element("p", { className: "quiet" });
    this.why = element("p", { className: "why" });
    this.legend = element("p", { className: "quiet legend" }, LEGEND);
    this.sides = element("div", { className: "sides" }, element("div", {}, this.drawing, this.legend), element("div", {}, this.formulas, this.symbols, this.why));
    this.card = element("section", { id: "walk-step", "aria-labelledby": "walk-title", tabIndex: -1 },
      this.heading, this.say, this.glossary.meaning, this.sides);
    this.request = new RequestPanel();
    root.append(
      element("div", { className: "chips", role: "group", "aria-label": "Examples" }, ...this.chips.map(({ chip }) => chip)),
      element("div", { className: "texts" },
        element("div", { className: "sentence" }, element("label", { htmlFor: "walk-text" }, "Sentence"), this.text, this.textFault.root, this.pair,
          element("p", { className: "quiet" }, "Select the token to follow:"), this.tokenBox),
        element("div", { className: "sentence" }, element("label", { htmlFor: "walk-second" }, "Second sentence, to compare with in steps 2 and 13"),
          this.second, this.secondFault.root, this.compared)),
      this.player, this.card, this.request.root, this.glossary.root,
    );
    root.addEventListener("keydown", (event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      if (!(event.key in ARROWS) || event.ctrlKey || event.altKey || event.metaKey || target.matches("input, select, textarea, pre, .scroller")) return;
      event.preventDefault();
      this.#go(this.state.step + ARROWS[event.key]);
    });
  }

  setModel(/** @type {any} */ model) {
    if (this.model && this.model.name !== model.name) {
      for (const { query } of Object.values(this.answers)) query.request(null);
      this.rejected.clear();
      this.state = { ...this.state, head: null };
    }
    this.model = model;
    this.start();
  }

  setActive(/** @type {boolean} */ active) {
    this.active = active;
    // The errors of a closed tab would stay, because only the open one sends its requests again.
    if (!active) for (const { query, failed } of Object.values(this.answers)) if (failed) query.request(null);
    this.start();
  }

  /** Send the requests of the view, also those that failed. */
  start() {
    this.#refresh(0);
  }

  restore(/** @type {WalkState} */ state) {
    this.state = state;
    this.seek = "";
    this.#refresh(0);
  }

  /** Follow a token, from its place in a text. */
  open(/** @type {Partial<WalkState>} */ place, seek = "") {
    this.#edit({ pair: null, segment: 0, layer: 1, head: null, ...place }, 0, seek);
  }

  /** Change the state. A change other than the step ends the search for the head of an example. */
  #edit(/** @type {Partial<WalkState>} */ change, delay = TYPING_MS, seek = "") {
    this.state = { ...this.state, ...change };
    this.seek = seek;
    this.#refresh(delay);
    this.onChange();
  }

  #go(/** @type {number} */ step) {
    this.glossary.clear();
    this.#edit({ step: Math.max(0, Math.min(STEPS.length - 1, step)) }, 0, this.seek);
  }

  get #isSupported() {
    return hasMaps(this.model) && this.model.layer_outputs?.length > 0 && this.model.layer_structure;
  }

  #input() {
    const { text, pair } = this.state;
    return inputOf(/** @type {any} */ ({ text, pair }));
  }

  /** Return the second sentence, or "" if it is empty or too long. */
  get #second() {
    const { second } = this.state;
    return second.trim() && !this.rejected.has(JSON.stringify(second)) ? second : "";
  }

  /** Return the answer to the request that the state needs, or null while it is pending. */
  #answer(/** @type {keyof typeof this.answers} */ name) {
    const { wanted, of, values } = this.answers[name];
    return wanted && wanted === of ? values : null;
  }

  get #tokens() {
    return this.#answer("tokens")?.[0] ?? [];
  }

  get #others() {
    return this.#answer("tokens")?.[1] ?? [];
  }

  /** Return the place of the followed token: the one at its start, or the next one. */
  get #row() {
    const { start, segment } = this.state;
    const tokens = this.#tokens;
    if (start < 0) return unnamedPlaces(tokens)[-start - 1] ?? tokens.findIndex(({ special }) => !special);
    const find = (/** @type {(token: any) => boolean} */ matches) => tokens.findIndex((token) => !token.special && matches(token));
    const places = [
      find((token) => token.segment === segment && token.start <= start && start < token.end),
      find((token) => token.segment === segment && token.start >= start), find(() => true),
    ];
    return places.find((place) => place >= 0) ?? -1;
  }

  /** Return the place of the followed token in the other sentence, or -1. */
  get #otherRow() {
    const token = this.#tokens[this.#row];
    const find = token?.special ? "findLastIndex" : "findIndex";
    // The separator after the text is the last of its kind, as is that of the other sentence.
    return token ? this.#others[find](({ id, special }) => special === token.special && id === token.id) : -1;
  }

  /** How many tokens the word of the followed token has. */
  get #pieces() {
    const { word_index: word, segment } = this.#tokens[this.#row];
    return word === null ? 1 : this.#tokens.filter((token) => token.word_index === word && token.segment === segment).length;
  }

  async #truncate(/** @type {"text" | "second"} */ name) {
    const input = name === "text" ? this.#input() : this.state.second;
    const error = this.rejected.get(JSON.stringify(input));
    if (!error) return this.notices.set("truncate", null);
    try {
      const [text, pair] = await truncate(/** @type {any} */ (input), error, { prompt: "" });
      this.notices.set("truncate", null);
      this.#edit(name === "second" ? { second: text } : { text, ...(pair === undefined ? {} : { pair }) }, 0);
    } catch (failure) {
      this.notices.set("truncate", /** @type {any} */ (failure), () => this.#truncate(name));
    }
  }

  /** Send the requests that the state needs, and render. */
  #refresh(/** @type {number} */ delay) {
    if (this.model) this.state = { ...this.state, layer: Math.max(1, Math.min(this.model.num_hidden_layers, this.state.layer)) };
    if (this.active && this.model && this.#isSupported) {
      this.#send(delay);
      if (this.seek && this.#answer("maps")) return this.#seek();
    }
    this.#render();
  }

  /** Select the head that gives the followed token's weight to the word of an example, more than other words do. */
  #seek() {
    const row = this.#row;
    const target = this.#tokens.findIndex(({ text }) => same({ text }, { text: this.seek }));
    this.seek = "";
    if (target < 0) return this.#render();
    this.target = target;
    const ranked = rankHeads(this.#answer("maps").maps, this.#tokens, row, target).toSorted((a, b) => (b.weight - b.mean) - (a.weight - a.mean));
    this.#edit({ layer: ranked[0].layer, head: ranked[0].head }, 0);
  }

  #send(/** @type {number} */ delay) {
    const want = (/** @type {keyof typeof this.answers} */ name, /** @type {object | null} */ request) => {
      const answer = this.answers[name];
      answer.wanted = request ? JSON.stringify(withModel(request)) : "";
      if (!request) answer.failed = false;
      answer.query.request(request, delay);
    };
    const [input, second] = [this.#input(), this.#second];
    const isUsable = this.state.text.trim() !== "" && !this.rejected.has(JSON.stringify(input));
    const inputs = [input, ...(second ? [second] : [])];
    want("tokens", isUsable ? { inputs } : null);
    const [row, other] = [this.#row, this.#otherRow];
    if (row < 0) {
      // While the tokens are pending, the answers for the tokens before do not count.
      const hasNone = !isUsable || this.#answer("tokens") !== null;
      for (const name of /** @type {const} */ (["outputs", "maps", "embeddings", "positions", "similarities", "words"])) {
        if (hasNone) want(name, null);
        else this.answers[name].wanted = "";
      }
      return;
    }
    want("outputs", { inputs: [input], outputs: OUTPUTS, rows: [row], layers: [this.state.layer], encoding_format: "base64" });
    const isShort = this.#tokens.length <= NAMED_TOKENS && this.#others.length <= NAMED_TOKENS;
    want("maps", isShort ? headNamesRequest(inputs) : null);
    const needsStatic = this.state.step === STATIC_STEP && this.model.outputs.includes("static");
    want("embeddings", needsStatic
      ? { inputs: [input, ...(other >= 0 ? [second] : [])], outputs: ["static", "tokens"], layers: [0], prompt: "", encoding_format: "base64" } : null);
    const needsPositions = this.state.step === STATIC_STEP && isShort && this.model.layer_outputs.includes("position");
    want("positions", needsPositions ? { inputs, outputs: ["position"], layers: [this.state.layer], encoding_format: "base64" } : null);
    const occurrence = (/** @type {string} */ text, /** @type {any} */ { start, end }) => ({ text, span: [start, end] });
    want("similarities", other >= 0 && typeof input === "string" && this.#tokens[row].end > this.#tokens[row].start
      ? { occurrences: [occurrence(input, this.#tokens[row]), occurrence(second, this.#others[other])], layers: "all" } : null);
    const readsWords = this.state.step === LAST_STEP && this.model.operations.includes("fill_mask");
    want("words", readsWords ? { inputs: [input], position: row, layers: "all", top_k: READ_WORDS } : null);
  }

  /**
   * Return the head of the state, or one that shows something: the largest weight of another token of the text is nearest
   * to a half, so that several tokens count.
   */
  #head(/** @type {any} */ outputs) {
    const { head } = this.state;
    if (head !== null && head < this.model.num_attention_heads) return head;
    const row = this.#row;
    const best = outputs.weights.map(([own]) => Math.max(0, ...own.filter((_, place) => place !== row && !this.#tokens[place]?.special)));
    const distances = best.map((weight) => Math.abs(weight - 0.5));
    return distances.indexOf(Math.min(...distances));
  }

  #roleNames() {
    const roles = this.#answer("maps")?.roles;
    return Array.from({ length: this.model.num_attention_heads }, (_, head) => roleName(roles?.get(`${this.state.layer}.${head}`), this.#tokens));
  }

  #render() {
    const { text, second, pair, step } = this.state;
    // Assigning an equal value would move the caret.
    if (this.text.value !== text) this.text.value = text;
    if (this.second.value !== second) this.second.value = second;
    this.textFault.show(this.rejected.get(JSON.stringify(this.#input())), "The sentence");
    this.secondFault.show(this.rejected.get(JSON.stringify(second)), "The second sentence");
    this.pair.hidden = pair === null;
    this.pair.replaceChildren("Second text of the pair: ", bdi(pair ?? ""), " ", button("Remove", () => {
      this.#edit({ pair: null, segment: 0 }, 0);
      this.text.focus();
    }, { className: "plain" }));
    for (const { example, chip } of this.chips) chip.setAttribute("aria-pressed", String(example.text === text && example.second === second && pair === null));
    this.slider.value = String(step + 1);
    this.slider.setAttribute("aria-valuetext", `${step + 1} of ${STEPS.length}: ${STEPS[step].title}`);
    this.output.textContent = `${step + 1} of ${STEPS.length}`;
    this.back.setAttribute("aria-disabled", String(step === 0));
    this.next.setAttribute("aria-disabled", String(step === STEPS.length - 1));
    this.player.hidden = this.model !== null && !this.#isSupported;
    this.#drawTokens();
    const outputs = this.#answer("outputs");
    this.request.root.hidden = !outputs;
    if (outputs && this.#row >= 0 && this.#isSupported) {
      this.#drawPickers(outputs);
      this.#drawStep(outputs);
    } else this.#drawMessage();
  }

  /** Show why there is no step. While its numbers are pending, the numbers before stay, dimmed. */
  #drawMessage() {
    const title = `${this.state.step + 1}. ${STEPS[this.state.step].title}`;
    const isPending = this.model && this.#isSupported && this.state.text.trim() && this.textFault.root.hidden
      && !Object.values(this.answers).some(({ failed }) => failed) && !(this.#answer("tokens") && this.#row < 0);
    this.card.classList.toggle("stale", Boolean(isPending));
    if (isPending && this.heading.textContent === title) return;
    this.heading.textContent = title;
    this.say.replaceChildren(isPending || !this.model ? "" : this.#reason());
    this.sides.hidden = true;
  }

  #reason() {
    if (!hasMaps(this.model)) return "This model was exported without explanations, so the server cannot show its attention.";
    if (!this.#isSupported) return "An earlier version exported this model, without the graphs of this view. Export it again with attendant-model export.";
    if (!this.state.text.trim()) return "Type a sentence.";
    if (!this.textFault.root.hidden) return "";
    return this.#answer("tokens") && this.#row < 0 ? "The sentence has no tokens of its own." : "Not computed. See the message at the top of the page.";
  }

  #drawTokens() {
    const [row, other, others] = [this.#row, this.#otherRow, this.#others];
    this.compared.replaceChildren(...(other >= 0 ? ["Compared with ", element("strong", {}, bdi(others[other].text)), `, token ${other + 1} of ${others.length}.`]
      : others.length && row >= 0 ? ["It does not contain ", element("strong", {}, bdi(this.#tokens[row].text)), "."] : []));
    const isPending = !this.#answer("tokens") && this.answers.tokens.wanted !== "" && !this.answers.tokens.failed;
    const key = JSON.stringify([this.#tokens, row]);
    if (isPending || this.tokenBox.dataset.key === key) return;
    const hadFocus = this.tokenBox.contains(document.activeElement);
    this.tokenBox.dataset.key = key;
    const unnamed = unnamedPlaces(this.#tokens);
    this.tokenBox.replaceChildren(...this.#tokens.map((token, place) => element("button", {
      type: "button", className: `unit${token.special ? " special" : ""}`, "aria-pressed": String(place === row),
      on: { click: () => this.#edit(unnamed.includes(place) ? { start: -unnamed.indexOf(place) - 1, segment: 0 } : { start: token.start, segment: token.segment }, 0) },
    }, element("span", { className: "text" }, unitText(token)))));
    if (hadFocus) /** @type {HTMLElement | null} */ (this.tokenBox.querySelector('[aria-pressed="true"]'))?.focus();
  }

  #drawPickers(/** @type {any} */ outputs) {
    const { num_hidden_layers: layers, num_attention_heads: heads } = this.model;
    const [layer, head, names] = [this.state.layer, this.#head(outputs), this.#roleNames()];
    const key = JSON.stringify([layers, layer, head, names]);
    if (this.pickers.dataset.key === key) return;
    const focused = this.pickers.contains(document.activeElement) ? document.activeElement?.id : null;
    this.pickers.dataset.key = key;
    this.pickers.replaceChildren(
      select("Layer", Array.from({ length: layers }, (_, place) => ({ value: String(place + 1), text: `${place + 1} of ${layers}` })), String(layer),
        (value) => this.#edit({ layer: Number(value) }, 0), { id: "walk-layer" }),
      select("Head, from 0", Array.from({ length: heads }, (_, place) => ({ value: String(place), text: `${place}${names[place] ? `: ${names[place]}` : ""}` })), String(head),
        (value) => this.#edit({ head: Number(value) }, 0), { id: "walk-head" }),
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  #drawStep(/** @type {any} */ outputs) {
    const { step, layer, pair } = this.state;
    const [row, other] = [this.#row, this.#otherRow];
    const embeddings = this.#answer("embeddings");
    const ofTokens = (/** @type {any[][]} */ [first, second]) => [first[row], ...(second ? [second[other]] : [])];
    const { say, formulas, symbols, figure, why } = STEPS[step].draw({
      model: this.model, tokens: this.#tokens, row, layer, head: this.#head(outputs), outputs, roles: this.#roleNames(),
      other: other >= 0 ? this.#others[other].text : null, hasSecond: this.#others.length > 0, isPair: pair !== null,
      embeddings: embeddings ? { static: ofTokens(embeddings.static), input: ofTokens(embeddings.input) } : null,
      positions: this.#answer("positions"), otherRow: other, pieces: this.#pieces,
      similarities: this.#answer("similarities"), words: this.#answer("words"), maps: this.#answer("maps")?.maps ?? [], target: this.target, switches: this.switches,
      onSwitch: (name, value) => { this.switches = { ...this.switches, [name]: value }; this.#render(); },
      onTarget: (target) => { this.target = target; this.#render(); },
      term: (name, text) => this.glossary.term(name, text),
      onPlace: (place) => this.#edit(place, 0),
    });
    const hadFocus = this.card.contains(document.activeElement);
    const focused = document.activeElement?.id;
    this.card.classList.remove("stale");
    this.sides.hidden = false;
    this.heading.textContent = `${step + 1}. ${STEPS[step].title}`;
    this.say.replaceChildren(...say);
    this.drawing.replaceChildren(...figure);
    this.formulas.replaceChildren(...formulas.map(formula));
    this.symbols.textContent = symbols;
    this.why.replaceChildren(element("strong", {}, "Why? "), ...why);
    this.legend.hidden = !this.drawing.querySelector(".cells");
    this.request.show("attend", JSON.parse(this.answers.outputs.of));
    if (hadFocus && !this.card.contains(document.activeElement)) ((focused && document.getElementById(focused)) || this.card).focus();
  }
}

/** Return the places of tokens that have no characters of their own: the special ones, then further pieces of a character. */
function unnamedPlaces(/** @type {any[]} */ tokens) {
  const starts = new Set();
  const [special, pieces] = [/** @type {number[]} */ ([]), /** @type {number[]} */ ([])];
  tokens.forEach((token, place) => {
    const key = `${token.segment}.${token.start}`;
    if (token.special) special.push(place);
    else if (starts.has(key)) pieces.push(place);
    else starts.add(key);
  });
  return [...special, ...pieces];
}

/** Return the place of the followed word after an edit: the nearest equal word, or else its old place. */
function movedWord(/** @type {WalkState} */ { text, start, segment }, /** @type {string} */ edited) {
  if (segment > 0 || start < 0) return start;
  const word = wordsOf(text).find((other) => other.start <= start && start < other.end);
  const growth = Array.from(edited).length - Array.from(text).length;
  const distance = (/** @type {{start: number}} */ other) => Math.min(Math.abs(other.start - start), Math.abs(other.start - start - growth));
  const equal = word ? wordsOf(edited).filter((other) => same(other, word)).toSorted((a, b) => distance(a) - distance(b))[0] : undefined;
  return equal && word ? equal.start + start - word.start : start;
}
