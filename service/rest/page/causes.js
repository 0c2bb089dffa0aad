import { withModel } from "./api.js";
import { applyTint } from "./attention.js";
import { lineChart } from "./chart.js";
import { hasPair } from "./choice.js";
import { occurrence, TOP_CONTRIBUTORS } from "./comparison.js";
import { element, scroller } from "./element.js";
import { bdi, isolated, ordinal, rank } from "./naming.js";
import { formatNumber } from "./number.js";
import { RequestPanel } from "./request.js";
import { rove } from "./roving.js";
import { GROUPS } from "./senses.js";
import { isWord } from "./words.js";

const MOST_REMOVED = 24; // words of a sentence that are removed in turn
const MOST_WORDS = 2000; // in all texts of a request
const MOST_OTHERS = 8; // occurrences that the vector is compared with
const FEWEST_RANKED = 3; // words from which two orders can be compared
const SMALLEST = 0.0005; // change that is shown as 0.001
const MIN_WIDTH = 280; // of the chart in pixels
const MAX_WIDTH = 720;
const NAMES = { same: "same", other: "other", unknown: "others" };
const SENSES = { same: "the same sense", other: "the other sense", unknown: "unknown senses" };
const CAVEAT = "Removing a word also moves the words after it, and the rest need not be a correct sentence.";

/**
 * @typedef {import("./choice.js").Sentence} Sentence
 * @typedef {import("./choice.js").Choice} Choice
 * @typedef {{word: import("./choice.js").SegmentWord, place: number, text: string, span: [number, number]}} Removal
 *   a sentence without a word, with the place of the selected word in it
 */

/**
 * Return a text without one of its words and the space beside it, and the place of another word in it. Offsets are in code
 * points.
 *
 * @param {string} text
 * @param {{start: number, end: number}} removed
 * @param {{start: number, end: number}} kept
 * @returns {{text: string, span: [number, number]}}
 */
export function withoutWord(text, removed, kept) {
  const characters = Array.from(text);
  const isSpace = (/** @type {number} */ place) => /\s/u.test(characters[place] ?? "");
  const isLetter = (/** @type {number} */ place) => /[\p{L}\p{N}]/u.test(characters[place] ?? "");
  const start = isSpace(removed.start - 1) && !isLetter(removed.end) ? removed.start - 1 : removed.start;
  const end = start === removed.start && isSpace(removed.end) && !isLetter(start - 1) ? removed.end + 1 : removed.end;
  const shift = kept.start >= removed.end ? end - start : 0;
  return {
    text: [...characters.slice(0, start), ...characters.slice(end)].join(""),
    span: [kept.start - shift, kept.end - shift],
  };
}

/** Return whether two words do not overlap. A selected token may be a part of a word. */
function isApart(/** @type {import("./words.js").Word} */ left, /** @type {import("./words.js").Word} */ right) {
  return left.end <= right.start || left.start >= right.end;
}

/**
 * Return a sentence without each of its other words: those nearest to the selected word, in the order of the sentence.
 *
 * @param {Sentence & {word: Choice}} sentence
 * @returns {Removal[]}
 */
export function removals({ text, word, words }) {
  const most = Math.min(MOST_REMOVED, Math.max(1, Math.floor(MOST_WORDS / words.length)));
  const distance = (/** @type {{start: number, end: number}} */ { start, end }) => Math.max(start - word.end, word.start - end);
  return words.map((removed, place) => ({ removed, place }))
    .filter(({ removed }) => isWord(removed) && isApart(removed, word))
    .toSorted((a, b) => distance(a.removed) - distance(b.removed)).slice(0, most)
    .toSorted((a, b) => a.place - b.place)
    .map(({ removed, place }) => ({ word: removed, place, ...withoutWord(text, removed, word) }));
}

/** Return the rank of each value, 1 for the largest. Equal values share their mean rank. */
export function ranksOf(/** @type {number[]} */ values) {
  return values.map((value) => {
    const larger = values.filter((other) => other > value).length;
    return larger + (values.filter((other) => other === value).length + 1) / 2;
  });
}

/** Return Spearman's rank correlation of two lists: Pearson's correlation of their ranks. 0 if all values of one are equal. */
export function rankCorrelation(/** @type {number[]} */ left, /** @type {number[]} */ right) {
  const [x, y] = [left, right].map((values) => ranksOf(values).map((place) => place - (values.length + 1) / 2));
  const product = (/** @type {number[]} */ a, /** @type {number[]} */ b) => a.reduce((sum, value, place) => sum + value * b[place], 0);
  const scale = Math.sqrt(product(x, x) * product(y, y));
  return scale > 0 ? product(x, y) / scale : 0;
}

/**
 * What the words of a sentence do to the vector of the selected word, measured by removing them one by one, beside what the
 * attention map says.
 */
export class Causes {
  /**
   * @param {HTMLDetailsElement} root
   * @param {{onToggle: () => void, onRemove: (place: number | null) => void, query: import("./query.js").MakeQuery}} listeners
   *   `onRemove`: called with the place of the word that the user removes, or null
   */
  constructor(root, { onToggle, onRemove, query }) {
    this.root = root;
    this.onRemove = onRemove;
    this.body = /** @type {HTMLElement} */ (root.querySelector(".body"));
    this.request = new RequestPanel();
    /** @type {any} */
    this.response = null;
    this.view = null;
    this.query = query("v1/compare", ["#causes"], {
      onResponse: (response, request) => { this.response = response; this.sent = withModel(request); this.#draw(); },
      onFailure: (failed) => { if (failed) { this.response = null; this.#draw("Not computed. See the message at the top of the page."); } },
    });
    root.addEventListener("toggle", onToggle);
  }

  get isOpen() {
    return this.root.open;
  }

  /**
   * Send the request of the part, if it is open and the sentence has words to remove.
   *
   * @param {Sentence | undefined} sentence
   * @param {Sentence[]} others the other compared sentences
   * @param {number} delay
   */
  update(sentence, others, delay) {
    this.reason = !sentence ? "Type a sentence first."
      : hasPair(sentence) ? "Select a sentence without a second text."
        : !sentence.word ? "Select a word of the sentence." : "";
    const chosen = /** @type {Sentence & {word: Choice}} */ (sentence);
    /** @type {Removal[]} */
    this.removed = this.reason ? [] : removals(chosen);
    if (!this.reason && !this.removed.length) this.reason = "The sentence has no other word.";
    this.others = others.slice(0, MOST_OTHERS);
    this.sentence = chosen;
    const body = this.reason || !this.isOpen ? null : {
      occurrences: [
        { text: chosen.text, span: [chosen.word.start, chosen.word.end] },
        ...this.removed.map(({ text, span }) => ({ text, span })),
        ...this.others.map(({ text, word }) => ({ text, span: [word?.start, word?.end] })),
      ],
      layers: "all", top_contributors: TOP_CONTRIBUTORS,
    };
    this.view = null; // a kept response is shown at once, and the previous view belongs to other sentences
    this.wanted = body && withModel(body);
    this.query.request(body, delay);
  }

  /**
   * @param {{layer: number | null, senses: (string | null)[], removed: number | null, number: number, numbers: number[],
   *          map: import("./attention.js").AttentionMap | null, isExploring: boolean}} view `senses`: of the selected word, and of the other
   *   occurrences; `removed`: place of the removed word; `number`: of the sentence; `numbers`: of the others; `map`: the
   *   current map of the sentence
   */
  show(view) {
    this.view = view;
    this.#draw();
  }

  #draw(message = this.reason) {
    if (!this.isOpen || !this.view) return;
    if (message) this.body.inert = false;
    if (message) return this.body.replaceChildren(element("p", { className: "quiet" }, message));
    const { response, sent, removed: all, sentence, view } = this;
    const isCurrent = JSON.stringify(this.wanted) === JSON.stringify(sent);
    this.body.classList.toggle("stale", !isCurrent);
    this.body.inert = !isCurrent; // the words of the last response may be those of another sentence
    if (!response || !isCurrent) return;
    const focused = this.body.contains(document.activeElement) ? document.activeElement?.id : "";
    const layer = response.layers[Math.min(view.layer ?? Infinity, response.layers.length - 1)];
    const effects = all.map((_, index) => 1 - layer.cosine[0][1 + index]);
    const shares = view.map && contributions(view.map, sentence.word, all);
    const chosen = all.findIndex(({ place }) => place === view.removed);
    this.request.show("compare", sent);
    this.body.replaceChildren(
      element("p", { className: "quiet" }, `Sentence ${view.number}. Select a word to remove it. The number below a word is the change of the vector of `,
        bdi(sentence.word.text), ` without it: 1 minus the cosine of the two vectors at layer ${layer.layer}. `, CAVEAT, this.#limit),
      this.#strip(all, effects, chosen),
      element("p", { className: "say", role: "status" }, ...this.#say(all, effects, shares, chosen, layer.layer)),
      chosen < 0 ? "" : this.#change(all[chosen], chosen),
      element("details", { className: "more", id: "causes-values", open: this.isListed, on: { toggle: (/** @type {any} */ event) => { this.isListed = event.target.open; } } },
        element("summary", {}, "Values of each word"), this.#table(all, effects, shares, layer)),
      this.request.root,
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  /** Say how many words are removed in turn, if not all are. */
  get #limit() {
    const { removed, sentence } = this;
    const count = sentence.words.filter((word) => isWord(word) && isApart(word, sentence.word)).length;
    return removed.length < count ? ` Only the ${removed.length} nearest of ${count} words are removed.` : "";
  }

  /** The words of the sentence: those that can be removed as buttons. */
  #strip(/** @type {Removal[]} */ all, /** @type {number[]} */ effects, /** @type {number} */ chosen) {
    const { word, words } = this.sentence;
    const largest = Math.max(...effects);
    /** @type {HTMLButtonElement[]} */
    const buttons = [];
    const units = words.map((unit, place) => {
      const index = all.findIndex((removal) => removal.place === place);
      const text = element("span", { className: "text" }, unit.text);
      const value = element("span", { className: "value" }, index < 0 ? "" : formatNumber(effects[index]));
      const isSubject = !isApart(unit, word);
      if (index < 0) return element("span", { className: `unit${isSubject ? " subject" : ""}` }, text, " ", value);
      const control = element("button", {
        type: "button", id: `cause-${place}`, className: `unit${index === chosen ? " removed" : ""}`, "aria-pressed": String(index === chosen),
        "aria-label": `Remove ${isolated(unit.text)}${ordinal(words, place)}: change ${formatNumber(effects[index])}`,
        on: { click: () => this.onRemove(index === chosen ? null : place) },
      }, text, " ", value);
      applyTint(control, effects[index], largest);
      buttons.push(control);
      return control;
    });
    const box = element("div", { className: "units", dir: "auto" }, ...units);
    rove(box, [buttons], [0, Math.max(0, chosen)]);
    return element("div", { className: "strip", role: "group", "aria-label": "Words to remove" }, box);
  }

  /** State what the removal of a word changes, and whether the map agrees. */
  #say(/** @type {Removal[]} */ all, /** @type {number[]} */ effects, /** @type {number[] | null} */ shares, /** @type {number} */ chosen, /** @type {number} */ layer) {
    if (Math.max(...effects) < SMALLEST) return [`At layer ${layer}, no removal changes the vector of `, bdi(this.sentence.word.text), "."];
    const names = all.map(({ place }) => [element("strong", {}, bdi(this.sentence.words[place].text)), ordinal(this.sentence.words, place)]);
    const subject = bdi(this.sentence.word.text);
    const most = effects.indexOf(Math.max(...effects));
    const index = chosen < 0 ? most : chosen;
    const change = element("span", { className: "number" }, formatNumber(effects[index]));
    const inMap = `${this.view?.isExploring ? "In the map" : "Among the contributions"} (${this.view?.map?.view})`;
    const [place, listed] = [effects, shares ?? effects].map((values) => largestAt(Math.ceil(ranksOf(values)[index])));
    const said = chosen < 0
      ? ["Removing ", ...names[most], " changes the vector of ", subject, ` at layer ${layer} the most: by `, change, "."]
      : ["Without ", ...names[chosen], ", the vector of ", subject, ` at layer ${layer} changes by `, change, `: the ${place} change of ${all.length} words.`];
    if (!shares || all.length < FEWEST_RANKED) return said;
    const top = shares.indexOf(Math.max(...shares));
    const compared = chosen >= 0 ? [` ${inMap}, it has the ${listed} value.`]
      : top === most ? [` ${inMap}, it has the largest value, too.`]
        : [` ${inMap}, `, ...names[top], " has the largest value: the two disagree."];
    return [...said, ...compared, " Over all words, the rank correlation of both is ",
      element("span", { className: "number" }, formatNumber(rankCorrelation(effects, shares))), " (1: same order, 0: unrelated)."];
  }

  /** The similarity with the other sentences by layer, and the largest contributions, before and after the removal. */
  #change(/** @type {Removal} */ removal, /** @type {number} */ chosen) {
    const { layers, occurrences } = this.response;
    const { senses, numbers, layer, number } = /** @type {NonNullable<typeof this.view>} */ (this.view);
    const first = 1 + this.removed.length;
    const [own, ...known] = senses;
    const groupOf = (/** @type {number} */ index) => (own === null || known[index] === null ? "unknown" : own === known[index] ? "same" : "other");
    const groups = GROUPS.map((group) => ({ group, places: numbers.flatMap((_, index) => (groupOf(index) === group ? first + index : [])) }))
      .filter(({ places }) => places.length);
    const meanBy = (/** @type {number} */ from, /** @type {number[]} */ places) =>
      layers.map(({ cosine }) => places.reduce((sum, place) => sum + cosine[from][place], 0) / places.length);
    const lines = groups.flatMap(({ group, places }) => [
      { className: `before ${group}`, values: meanBy(0, places), label: `${NAMES[group]}, before` },
      { className: `context ${group}`, values: meanBy(1 + chosen, places), label: `${NAMES[group]}, after`, marked: true },
    ]);
    const place = Math.min(layer ?? Infinity, layers.length - 1);
    const described = lines.map(({ label, values }) => `${label}: ${formatNumber(values[place])} at layer ${layers[place].layer}`).join(". ");
    const width = Math.max(MIN_WIDTH, Math.min(MAX_WIDTH, this.body.clientWidth));
    return element("div", { className: "sides change" },
      lines.length ? element("div", { className: "figure" },
        element("h3", {}, "Similarity with the other sentences"),
        lineChart(lines, { description: `Mean similarity with the other sentences by layer, before and after the removal. ${described}.`,
          measure: "cosine", width, layer: place }),
        element("p", { className: "quiet" }, `Mean cosine with the word in sentences of ${groups.map(({ group }) => SENSES[group]).join(" and of ")}. `
          + "Thin lines: before the removal. Lines with dots: after it.")) : "",
      element("div", {},
        element("h3", {}, "Largest contributions, before and after"),
        element("ul", { className: "occurrences" },
          occurrence(occurrences[0], this.sentence.text, number), occurrence(occurrences[1 + chosen], removal.text, number))));
  }

  #table(/** @type {Removal[]} */ all, /** @type {number[]} */ effects, /** @type {number[] | null} */ shares, layer) {
    const [places, listed] = [ranksOf(effects), shares && ranksOf(shares)];
    const order = all.map((_, index) => index).toSorted((a, b) => effects[b] - effects[a]);
    const names = ["removed word", "cosine with the full sentence", "change", "rank", ...(shares ? ["size of the value in the map", "rank"] : [])];
    return scroller("Values of each word", element("table", { className: "numbers" },
      element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...order.map((index) => element("tr", {},
        element("th", { scope: "row" }, bdi(all[index].word.text), ordinal(this.sentence.words, all[index].place)),
        ...[formatNumber(layer.cosine[0][1 + index]), formatNumber(effects[index]), String(places[index]),
          ...(shares && listed ? [formatNumber(shares[index]), String(listed[index])] : [])].map((text) => element("td", {}, text)))))));
  }
}

/** Return a place in an order of sizes: "largest", "2nd largest". */
function largestAt(/** @type {number} */ place) {
  return place === 1 ? "largest" : `${rank(place)} largest`;
}

/**
 * Return the value of each word in the row of the selected word of a map: the sum over the tokens of the word. Null if the
 * map has no values, or values that cannot be added.
 *
 * @param {import("./attention.js").AttentionMap} map
 * @param {Choice} word
 * @param {Removal[]} all
 */
function contributions(map, word, all) {
  const values = map.contributionsOf(map.unitOf(word));
  if (!values.length || map.kind === "scores") return null;
  return all.map(({ word: { start, end, segment } }) => values
    .filter(({ unit }) => !unit.special && unit.segment === segment && unit.start >= start && unit.start < end)
    .reduce((sum, { value }) => sum + Math.abs(value), 0));
}
