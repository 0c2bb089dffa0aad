import { element, select } from "./element.js";
import { headNames, headReason, kindMeaning, KINDS, layerMeaning, specialMeaning } from "./settings.js";

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
   */
  show(settings, model) {
    const focused = this.root.contains(document.activeElement) ? document.activeElement?.id : undefined;
    const reason = headReason(settings);
    this.root.replaceChildren(
      element(
        "div",
        { className: "pickers" },
        this.#units(settings),
        select("Kind", kinds(model), settings.kind, (kind) => this.onChange({ kind }), {
          id: "kind", describedBy: "kind-meaning",
        }),
        select("Layer", layers(settings, model), settings.layer, (layer) => this.onChange({ layer }), {
          id: "layer", describedBy: "layer-meaning",
        }),
        select("Head", heads(settings, model, reason), settings.head, (head) => this.onChange({ head }), {
          id: "head", disabled: reason !== "", describedBy: "head-reason",
        }),
        select("Special tokens", specials(settings), settings.special, (special) => this.onChange({ special }), {
          id: "special", describedBy: "special-meaning",
        }),
        this.#self(settings),
      ),
      element(
        "ul",
        { className: "meanings" },
        element("li", { id: "kind-meaning" }, kindMeaning(settings)),
        element("li", { id: "layer-meaning" }, layerMeaning(settings)),
        element("li", { id: "head-reason", hidden: !reason }, reason),
        element("li", { id: "special-meaning" }, specialMeaning(settings)),
      ),
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  #units(/** @type {import("./settings.js").Settings} */ settings) {
    const names = { word: "Words", token: "Tokens" };
    const radios = Object.entries(names).map(([unit, name]) =>
      element(
        "label",
        {},
        element("input", {
          id: `unit-${unit}`, type: "radio", name: "unit", value: unit, checked: settings.unit === unit,
          on: { change: () => this.onChange({ unit }) },
        }),
        name,
      ),
    );
    return element("fieldset", { className: "picker" }, element("legend", {}, "Unit"),
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
    .map(([value, { name }]) => ({ value, text: name }));
}

function layers(/** @type {import("./settings.js").Settings} */ { kind }, { num_hidden_layers: count }) {
  const scores = kind === "scores";
  return [
    { value: "rollout", text: scores ? "rollout (not for scores)" : "rollout over all layers", disabled: scores },
    { value: "mean", text: "mean of all layers" },
    ...Array.from({ length: count }, (_, index) => ({ value: String(index + 1), text: `layer ${index + 1}` })),
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
