import { element, select } from "./element.js";
import { headNames, headReason, kindMeaning, KINDS, layerMeaning, specialMeaning } from "./settings.js";

const SEGMENTS = [
  { value: "all", text: "both texts" },
  { value: "a_to_a", text: "rows first, columns first" },
  { value: "a_to_b", text: "rows first, columns second" },
  { value: "b_to_a", text: "rows second, columns first" },
  { value: "b_to_b", text: "rows second, columns second" },
];

/** The controls for the view. They are rebuilt on every change, and the focus is restored. */
export class Pickers {
  /**
   * @param {HTMLElement} root
   * @param {(change: Partial<import("./settings.js").Settings>) => void} onChange
   */
  constructor(root, onChange) {
    this.root = root;
    this.onChange = onChange;
  }

  /**
   * @param {import("./settings.js").Settings} settings
   * @param {import("./settings.js").Model} model
   * @param {boolean} pairs whether all inputs are pairs
   */
  show(settings, model, pairs) {
    const focused = this.root.contains(document.activeElement) ? document.activeElement?.id : undefined;
    const reason = headReason(settings);
    this.root.replaceChildren(
      element(
        "div",
        { className: "pickers" },
        this.#radios("Unit", "unit", { word: "Words", token: "Tokens" }, settings.unit),
        this.#radios("Map", "view", { table: "Table", lines: "Lines" }, settings.view),
        select("Kind", kinds(model), settings.kind, (kind) => this.onChange({ kind }), {
          id: "kind", describedBy: "kind-meaning",
        }),
        select("Layers", layers(settings, model), settings.combine, (combine) => this.onChange({ combine }), {
          id: "combine", describedBy: "layer-meaning",
        }),
        select("Head", heads(settings, model, reason), settings.head, (head) => this.onChange({ head }), {
          id: "head", disabled: reason !== "", describedBy: "head-reason",
        }),
        select("Special tokens", specials(settings), settings.special, (special) => this.onChange({ special }), {
          id: "special", describedBy: "special-meaning",
        }),
        pairs && select("Segments", SEGMENTS, settings.segments, (segments) => this.onChange({ segments }), { id: "segments" }),
        this.#self(settings),
      ),
      element(
        "ul",
        { className: "meanings" },
        element("li", { id: "kind-meaning" }, kindMeaning(settings)),
        element("li", { id: "layer-meaning" }, layerMeaning(settings, model)),
        element("li", { id: "head-reason", hidden: !reason }, reason),
        element("li", { id: "special-meaning" }, specialMeaning(settings)),
      ),
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  /** Create radio buttons for a setting. */
  #radios(/** @type {string} */ title, /** @type {"unit" | "view"} */ name, /** @type {Record<string, string>} */ values, /** @type {string} */ chosen) {
    const radios = Object.entries(values).map(([value, text]) =>
      element(
        "label",
        {},
        element("input", {
          id: `${name}-${value}`, type: "radio", name, value, checked: chosen === value,
          on: { change: () => this.onChange({ [name]: value }) },
        }),
        text,
      ),
    );
    return element("fieldset", { className: "picker" }, element("legend", {}, title),
      element("div", { className: "segments" }, ...radios));
  }

  #self(/** @type {import("./settings.js").Settings} */ settings) {
    const box = element("input", {
      id: "self", type: "checkbox", checked: settings.self, on: { change: () => this.onChange({ self: box.checked }) },
    });
    return element("label", { className: "check" }, box, "Include the contribution of a word to itself");
  }
}

function kinds(/** @type {import("./settings.js").Model} */ model) {
  return Object.entries(KINDS)
    .filter(([kind]) => model.attention_kinds.includes(kind))
    .map(([value, { name, more }]) => ({ value, text: name, more }));
}

function layers(/** @type {import("./settings.js").Settings} */ { kind, layer }, { num_hidden_layers: count }) {
  const scores = kind === "scores";
  const last = Math.max(1, layer ?? count);
  return [
    { value: "none", text: `layer ${last} alone` },
    { value: "mean", text: `mean of layers 1 to ${last}` },
    { value: "rollout", text: scores ? "rollout (not for scores)" : `rollout of layers 1 to ${last}`, disabled: scores, more: true },
  ];
}

function heads(settings, { num_attention_heads: count }, /** @type {string} */ reason) {
  if (reason) return [{ value: settings.head, text: "all heads" }];
  const names = { mean: "mean of all heads", max: "maximum of all heads", sum: "sum of all heads" };
  return [
    ...headNames(settings).map((value) => ({ value, text: names[value] })),
    ...Array.from({ length: count }, (_, index) => ({ value: String(index), text: `head ${index}` })),
  ];
}

function specials(/** @type {import("./settings.js").Settings} */ { kind }) {
  const scores = kind === "scores";
  return [
    { value: "drop", text: "drop" },
    { value: "renormalize", text: scores ? "renormalize (not for scores)" : "renormalize", disabled: scores },
    { value: "keep", text: "keep" },
  ];
}
