import { inputOf } from "./choice.js";
import { downloads } from "./download.js";
import { element, select } from "./element.js";
import { heatmapFigure } from "./figure.js";
import { rolesOf } from "./heads.js";
import { Lines } from "./lines.js";
import { mapRows, Matrix } from "./matrix.js";
import { Multiples } from "./multiples.js";
import { isolated } from "./naming.js";
import { Pickers } from "./pickers.js";
import { RequestPanel } from "./request.js";
import { allHeadsRequest, hasHeads, headNamesRequest, headReason } from "./settings.js";

const LONG_WORDS = 64;
const MEASURED_SENTENCES = 8;
const CELL = 26; // pixels of a cell in saved figures
const SMALL_CELL = 8;

/** The folded part of the page: controls, the map of one sentence, and the maps of all layers and heads. */
export class Explore {
  /**
   * @param {HTMLDetailsElement} root
   * @param {{onSettings: (change: Partial<import("./settings.js").Settings>) => void, onOpen: (id: number) => void,
   *          onToggle: () => void, onFollow: (place: Partial<import("./walkthrough.js").WalkState>) => void,
   *          query: import("./query.js").MakeQuery}} listeners
   */
  constructor(root, { onSettings, onOpen, onToggle, onFollow, query }) {
    this.root = root;
    this.onOpen = onOpen;
    this.expanded = ""; // long sentence whose thumbnails the user requested
    /** @type {import("./attention.js").AttentionMap | null} */
    this.map = null;
    this.title = "";
    this.find = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (root.querySelector(selector));
    this.pickers = new Pickers(this.find("#pickers"), onSettings);
    this.opener = element("div", { className: "pickers" });
    this.matrixBox = element("div", {});
    const follow = (/** @type {number} */ row) => this.map && onFollow(this.#placeOf(this.map, row));
    this.matrix = new Matrix(this.matrixBox, follow);
    this.lines = new Lines(this.matrixBox, follow);
    this.request = new RequestPanel();
    this.save = downloads("map", () => this.#saved());
    this.find("#map .body").append(this.opener, this.matrixBox, this.save, this.request.root);
    this.multiples = new Multiples(this.find("#heads .body"), (layer, head) => {
      onSettings({ kind: hasHeads(this.kind) ? this.kind : "probs", combine: "none", layer, head: String(head) });
    });
    this.kind = "probs";
    this.headsQuery = query("v1/attend", ["#heads"], {
      onResponse: (response, request) => { this.multiples.show(response, request.kind); this.#mark(); },
      onFailure: (failed) => failed && this.multiples.clear(),
    });
    this.namesQuery = query("v1/attend", ["#heads .body"], {
      onResponse: (response) => this.multiples.nameHeads(rolesOf(response)),
      onFailure: (failed) => failed && this.multiples.nameHeads(null),
    });
    root.addEventListener("toggle", onToggle);
  }

  get isOpen() {
    return this.root.open;
  }

  /**
   * Request the maps of all heads of one sentence, and the measurements for the names of the heads, if the part is open.
   *
   * @param {import("./choice.js").Sentence[]} filled sentences with words
   * @param {number} open
   * @param {import("./settings.js").Settings} settings
   * @param {number} delay
   */
  requestHeads(filled, open, settings, delay) {
    const opened = filled.find(({ id }) => id === open);
    const long = opened && opened.words.length > LONG_WORDS && opened.text !== this.expanded;
    const shown = this.isOpen && opened && !long;
    this.kind = settings.kind;
    this.headsQuery.request(shown ? allHeadsRequest(settings, inputOf(opened)) : null, delay);
    const short = filled.filter(({ words }) => words.length <= LONG_WORDS).slice(0, MEASURED_SENTENCES);
    this.namesQuery.request(shown && short.length ? headNamesRequest(short.map(inputOf)) : null, delay);
    if (!short.length) this.multiples.nameHeads(null);
    if (!opened) this.multiples.clear();
    if (long) {
      this.multiples.offer(() => {
        this.expanded = opened.text;
        this.requestHeads(filled, open, settings, 0);
      });
    }
  }

  /**
   * @param {{sentences: import("./choice.js").Sentence[], open: number, settings: import("./settings.js").Settings,
   *          model: import("./settings.js").Model | null, pairs: boolean, stale: boolean, chosen: number,
   *          map: import("./attention.js").AttentionMap | null}} view
   */
  show({ sentences, open, settings, model, pairs, stale, chosen, map }) {
    if (model) this.pickers.show(settings, model, pairs);
    const place = sentences.findIndex(({ id }) => id === open);
    this.#renderOpener(sentences, place);
    this.map = map;
    this.place = place;
    this.title = map ? `Sentence ${place + 1}, ${map.view}` : "";
    this.find("#map").classList.toggle("stale", stale);
    this.matrixBox.hidden = this.request.root.hidden = map === null;
    this.save.hidden = map === null || map.isInput;
    this.find("#scale").textContent = map?.scale ?? "";
    if (map && settings.view === "lines" && map.units.length <= LONG_WORDS) this.lines.show(map, chosen, this.title);
    else if (map) this.matrix.show(map, chosen, this.title);
    this.marked = headReason(settings) === "" && settings.combine === "none" && hasHeads(settings.kind)
      ? { layer: Math.max(1, settings.layer ?? model?.num_hidden_layers ?? 0), head: Number(settings.head) }
      : { layer: null, head: null };
    this.multiples.setHasHeads(hasHeads(settings.kind));
    this.#mark();
  }

  #mark() {
    if (this.marked) this.multiples.mark(this.marked.layer, this.marked.head);
  }

  /** Return the place in the walkthrough of a row of the map: its token, and its layer and head if the map is of one head. */
  #placeOf(/** @type {import("./attention.js").AttentionMap} */ map, /** @type {number} */ row) {
    const place = map.rows[row];
    const { start, segment, special } = map.units[place];
    const specials = map.units.slice(0, place + 1).filter((unit) => unit.special).length;
    const [input] = map.request.inputs;
    const isOfHead = map.request.layer_reduce === "none" && map.request.head_reduce === "none" && map.request.heads?.length === 1;
    return {
      ...(typeof input === "string" ? { text: input, pair: null } : { text: input.text, pair: input.pair }),
      ...(special ? { start: -specials, segment: 0 } : { start, segment }), layer: map.layer ?? 1, head: isOfHead ? map.request.heads[0] : null, step: 7,
    };
  }

  /** Return the map as a figure and as rows of numbers. */
  #saved() {
    const { map } = this;
    if (!map) return null;
    const names = (/** @type {number[]} */ places) => places.map((index) => map.units[index].text);
    const figure = heatmapFigure({
      title: this.title, rows: names(map.rows), columns: names(map.columns), values: map.matrix, largest: map.largest,
      cell: map.rows.length > LONG_WORDS ? SMALL_CELL : CELL, isIncluded: (row, column) => map.isIncluded(row, column),
    });
    return { name: `attendant-map-${(this.place ?? 0) + 1}-${map.view.replaceAll(/\W+/g, "-")}`, figure, rows: mapRows(map) };
  }

  /** Render the select for the sentence whose map is shown. */
  #renderOpener(/** @type {import("./choice.js").Sentence[]} */ sentences, /** @type {number} */ place) {
    const rendered = JSON.stringify([sentences.map(({ id, text }) => [id, text]), place]);
    if (this.opener.dataset.rendered === rendered) return;
    const hadFocus = this.opener.contains(document.activeElement);
    const options = sentences.map(({ text }, index) => ({ value: String(index), text: `${index + 1}. ${isolated(text)}` }));
    const picker = select("Sentence", options, String(place), (index) => this.onOpen(sentences[Number(index)].id), { id: "open" });
    this.opener.dataset.rendered = rendered;
    this.opener.hidden = sentences.length < 2;
    this.opener.replaceChildren(picker);
    if (hadFocus) picker.querySelector("select")?.focus();
  }

  /** Forget the responses that canvases show, so that they are painted again. */
  reset() {
    this.headsQuery.reset();
    this.namesQuery.reset();
  }
}
