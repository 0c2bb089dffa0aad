import { createSentence, selectWords } from "./choice.js";
import { MEASURES } from "./comparison.js";
import { createExample, exampleOf, EXAMPLES } from "./examples.js";
import { SCORINGS } from "./scorings.js";
import { SENSES } from "./senses.js";
import { DEFAULTS, VALUES } from "./settings.js";
import { STEPS } from "./steps.js";
import { OPENING } from "./walkthrough.js";

/**
 * The state of the page in the fragment of its URL, which browsers do not send to the server. Only differences from the
 * opening state are written, as form data: `v=1&x=bat&layer=3`. Every part is checked when it is read.
 *
 * @typedef {{sentences: import("./choice.js").Sentence[], open: number, settings: import("./settings.js").Settings,
 *            measure: string, explore: boolean, causes: boolean, removed: number | null}} ContextState
 * @typedef {{query: string, documents: string[], shown: number, tint: string, score: string | null}} SimilarityState
 * @typedef {{tab: string, model: string | null, context: ContextState, similarity: SimilarityState | null,
 *            walk: import("./walkthrough.js").WalkState}} State
 */

const VERSION = "1";
export const TABS = ["context", "similarity", "attention"];
export const TINTS = ["sum", "effect"];
export const MOST_DOCUMENTS = 8;
const MOST_SENTENCES = 64;
const MOST_CHARACTERS = 16_384;
const MOST_LAYERS = 512;
const LONGEST = 30_000; // characters of a fragment
const KEYS = /^(v|tab|model|x|[tpws]\d+|open|removed|measure|explore|layer|head|self|unit|kind|combine|special|segments|view|q|d|shown|tint|score|walk(text|pair|second|start|segment|layer|head|step))$/;
const NUMBER = /^\d{1,6}$/;

/** An error in a link. */
export class LinkError extends Error {}

/** Return the fragment of a state without "#", "" for the opening state, or null if it is too long. */
export function encode(/** @type {State} */ { tab, model, context, similarity, walk }) {
  const form = new URLSearchParams();
  if (tab !== TABS[0]) form.set("tab", tab);
  if (model !== null) form.set("model", model);
  const { sentences, open, settings, measure, explore, causes, removed } = context;
  const example = exampleOf(sentences);
  if (example && example !== EXAMPLES[0]) form.set("x", example.name);
  if (!example) sentences.forEach((sentence, place) => writeTexts(form, sentence, place));
  const fresh = freshWords(sentences, example).map(choiceKey);
  sentences.forEach((sentence, place) => {
    if (choiceKey(sentence) !== fresh[place]) form.set(`w${place}`, choiceKey(sentence));
  });
  if (open > 0) form.set("open", String(open));
  if (causes) form.set("removed", String(removed === null ? 0 : removed + 1)); // 0: open, with all words
  if (measure !== "cosine") form.set("measure", measure);
  if (explore !== (example?.explore ?? false)) form.set("explore", explore ? "1" : "0");
  for (const [name, value] of Object.entries(settings)) {
    if (value !== DEFAULTS[name]) form.set(name, value === true ? "1" : String(value));
  }
  if (similarity) {
    form.set("q", similarity.query);
    for (const document of similarity.documents) form.append("d", document);
    if (similarity.shown) form.set("shown", String(similarity.shown));
    if (similarity.tint !== TINTS[0]) form.set("tint", similarity.tint);
    if (similarity.score) form.set("score", similarity.score);
  }
  for (const [name, value] of Object.entries(walk)) {
    if (value !== OPENING[name] && value !== null) form.set(`walk${name}`, String(value));
  }
  const text = form.toString();
  return text.length > LONGEST ? null : text && `v=${VERSION}&${text}`;
}

/** Write a sentence that is not part of an example. */
function writeTexts(form, { text, pair, sense }, place) {
  form.set(`t${place}`, text);
  if (pair !== null) form.set(`p${place}`, pair);
  if (sense) form.set(`s${place}`, `${sense.name} ${sense.word}`);
}

/** Return the sentences with the words that the page selects when it opens. */
function freshWords(/** @type {import("./choice.js").Sentence[]} */ sentences, /** @type {import("./examples.js").Example | undefined} */ example) {
  return example ? createExample(example, 0) : selectWords(sentences.map(({ id, text, pair, sense }) => ({ ...createSentence(id, text, pair), sense })));
}

/** Return the selected word of a sentence as text: start, end, segment, whether it is a part of a word, and whether the user selected it. */
function choiceKey(/** @type {import("./choice.js").Sentence} */ { word, picked }) {
  return word ? [word.start, word.end, word.segment, Number(word.piece ?? false), Number(picked === word)].join("-") : "none";
}

/**
 * Return the state of a fragment without "#". Throws a LinkError if it is not valid.
 *
 * @returns {State}
 */
export function decode(/** @type {string} */ fragment) {
  const form = new URLSearchParams(fragment);
  if (form.get("v") !== VERSION) throw new LinkError("unknown version");
  for (const key of form.keys()) {
    if (!KEYS.test(key) || (key !== "d" && form.getAll(key).length > 1)) throw new LinkError(`unexpected part ${key.slice(0, 20)}`);
  }
  const example = form.has("x") ? EXAMPLES.find(({ name }) => name === form.get("x")) : EXAMPLES[0];
  if (!example) throw new LinkError("unknown example");
  const own = form.has("t0");
  const created = own ? selectWords(readSentences(form)) : createExample(example, 0);
  const sentences = created.map((sentence, place) => ({ ...sentence, ...readChoice(form, sentence, place) }));
  const removed = number(form, "removed", MOST_CHARACTERS);
  return {
    tab: choice(form, "tab", TABS, TABS[0]),
    model: form.has("model") ? text(form.get("model")) : null,
    context: {
      sentences, open: number(form, "open", sentences.length - 1) ?? 0,
      settings: readSettings(form), measure: choice(form, "measure", Object.keys(MEASURES), "cosine"),
      explore: choice(form, "explore", ["0", "1"], !own && example.explore ? "1" : "0") === "1",
      causes: removed !== null, removed: removed ? removed - 1 : null,
    },
    similarity: form.has("q") ? readSimilarity(form) : null,
    walk: readWalk(form),
  };
}

function readSentences(/** @type {URLSearchParams} */ form) {
  const sentences = [];
  for (let place = 0; form.has(`t${place}`); place++) {
    const sentence = createSentence(place, line(form.get(`t${place}`)), form.has(`p${place}`) ? line(form.get(`p${place}`)) : null);
    const sense = form.get(`s${place}`);
    const [, name, word] = /^(\S+) (.+)$/u.exec(sense ?? "") ?? [];
    if (sense !== null && !SENSES.includes(name)) throw new LinkError(`s${place} is not a sense`);
    sentences.push({ ...sentence, sense: sense === null ? null : { name, word } });
  }
  if (sentences.length > MOST_SENTENCES) throw new LinkError("too many sentences");
  return sentences;
}

/** Return the selected word of a sentence, if the link has one. It must be a part of the sentence. */
function readChoice(/** @type {URLSearchParams} */ form, /** @type {import("./choice.js").Sentence} */ sentence, /** @type {number} */ place) {
  const parts = form.get(`w${place}`);
  if (parts === null) return {};
  if (parts === "none") return { word: null, picked: null };
  const isValid = /^\d{1,6}-\d{1,6}-[01]-[01]-[01]$/.test(parts);
  const [start, end, segment, piece, isPicked] = isValid ? parts.split("-").map(Number) : [0, 0, 0, 0, 0];
  const text = Array.from(segment ? sentence.pair ?? "" : sentence.text).slice(start, end).join("");
  if (!text || Array.from(text).length !== end - start) throw new LinkError(`w${place} is not a word of its sentence`);
  const word = { text, start, end, segment, piece: piece === 1 };
  return { word, picked: isPicked ? word : null };
}

function readSettings(/** @type {URLSearchParams} */ form) {
  const settings = { ...DEFAULTS };
  for (const [name, values] of Object.entries(VALUES)) settings[name] = choice(form, name, values, DEFAULTS[name]);
  settings.layer = number(form, "layer", MOST_LAYERS);
  settings.self = choice(form, "self", ["1"], "") === "1";
  const head = form.get("head") ?? DEFAULTS.head;
  if (!["mean", "max", "sum"].includes(head) && !NUMBER.test(head)) throw new LinkError("head is not valid");
  return { ...settings, head };
}

/** @returns {SimilarityState} */
function readSimilarity(/** @type {URLSearchParams} */ form) {
  const documents = form.getAll("d").map(text);
  if (!documents.length || documents.length > MOST_DOCUMENTS) throw new LinkError("the number of texts is not valid");
  return {
    query: text(form.get("q")), documents, shown: number(form, "shown", documents.length - 1) ?? 0,
    tint: choice(form, "tint", TINTS, TINTS[0]),
    score: form.has("score") ? choice(form, "score", Object.keys(SCORINGS), "") : null,
  };
}

/** @returns {import("./walkthrough.js").WalkState} */
function readWalk(/** @type {URLSearchParams} */ form) {
  const state = { ...OPENING };
  for (const name of ["text", "pair", "second"]) if (form.has(`walk${name}`)) state[name] = line(form.get(`walk${name}`));
  const isUnnamed = form.get("walkstart")?.startsWith("-");
  if (isUnnamed) form.set("walkstart", String(form.get("walkstart")).slice(1));
  const largest = { start: MOST_CHARACTERS, segment: 1, layer: MOST_LAYERS, head: MOST_LAYERS, step: STEPS.length - 1 };
  for (const [name, most] of Object.entries(largest)) state[name] = number(form, `walk${name}`, most) ?? state[name];
  if (isUnnamed) state.start *= -1;
  return state;
}

function text(/** @type {string | null} */ value) {
  if (value === null || value.length > MOST_CHARACTERS) throw new LinkError("a text is too long");
  return value;
}

/** Return a text of a field with one line, which would remove line breaks. */
function line(/** @type {string | null} */ value) {
  return text(value).replaceAll(/[\r\n]/g, " ");
}

function choice(/** @type {URLSearchParams} */ form, /** @type {string} */ key, /** @type {string[]} */ allowed, /** @type {string} */ fallback) {
  const value = form.get(key);
  if (value !== null && !allowed.includes(value)) throw new LinkError(`${key} is not valid`);
  return value ?? fallback;
}

function number(/** @type {URLSearchParams} */ form, /** @type {string} */ key, /** @type {number} */ largest) {
  const value = form.get(key);
  if (value !== null && (!NUMBER.test(value) || Number(value) > largest)) throw new LinkError(`${key} is not valid`);
  return value === null ? null : Number(value);
}
