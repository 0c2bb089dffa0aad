/**
 * What can be chosen, what it means, and the requests that follow from it.
 *
 * @typedef {{unit: string, kind: string, layer: string, head: string, special: string, self: boolean}} Settings
 * @typedef {{layer_count: number, head_count: number, attention_kinds: string[]}} Model
 */

/** The view that agrees best with what changing a word really does. */
export const DEFAULTS = {
  unit: "word", kind: "projection", layer: "rollout", head: "mean", special: "drop", self: false,
};

export const KINDS = {
  projection: {
    name: "projection: share of the result",
    meaning: "How much of a word's new vector each word put there. Negative: it pushed the vector away.",
    rolled: "How much of a word's vector came from each word. Sizes alone count, whatever their sign: nothing is negative.",
    says: ["draws", "from"],
  },
  probs: {
    name: "probs: attention weights",
    meaning: "Where each head looks, whatever it finds there.",
    rolled: "Where the heads look on average, whatever they find there; half of each layer is what a word keeps of itself.",
    says: ["gives", "to"],
  },
  scores: {
    name: "scores: before the softmax",
    meaning: "How well a word's query matches each key; any number, of either sign.",
    rolled: "",
    says: ["scores", "for"],
  },
  norm: {
    name: "norm: weights times what they carry",
    meaning: "The length of what each word sends: attention to a near-zero value counts little.",
    rolled: "The lengths of what each word sends, as shares. What a word keeps of itself beside the attention is not in it.",
    says: ["takes", "from"],
  },
  block_norm: {
    name: "block_norm: the whole block",
    meaning: "The length of what each word sends, with the residual path and the layer norm, as the word's vector really gets it.",
    rolled: "The lengths of what each word sends, as shares, with the residual path and the layer norm.",
    says: ["takes", "from"],
  },
};

const SPECIALS = {
  drop: "Special tokens such as [CLS] are left out; what went to them is the last column.",
  keep: "Special tokens such as [CLS] are shown; much attention rests on them.",
};

const SUMMED = { projection: true, block_norm: true };

/** What the numbers are, in one line. */
export function kindMeaning(/** @type {Settings} */ { kind, layer }) {
  return layer === "rollout" ? KINDS[kind].rolled : KINDS[kind].meaning;
}

/** What the choice of a layer means, in one line. */
export function layerMeaning(/** @type {Settings} */ { layer }) {
  if (layer === "rollout") {
    return "Rollout: the layers multiplied, so what arrives through all of them, from the words themselves up to the last layer.";
  }
  if (layer === "mean") return "Mean: the average of each layer's own map; nothing is followed from one layer to the next.";
  if (layer === "1") return "Layer 1 alone: the first mixing, of the words as they come in.";
  return `Layer ${layer} alone: what it mixes has been mixed by the layers before it already.`;
}

/** What becomes of the special tokens, in one line. */
export function specialMeaning(/** @type {Settings} */ { kind, layer, special }) {
  if (special === "renormalize") return `Special tokens are left out and ${scaling(kind, layer)}`;
  return kind === "scores" && special === "drop" ? "Special tokens such as [CLS] are left out." : SPECIALS[special];
}

function scaling(/** @type {string} */ kind, /** @type {string} */ layer) {
  const stays = "what is left out stays on the scale from before.";
  if (kind === "probs" || layer === "rollout") return `each row is scaled to sum to 1 again; ${stays}`;
  if (kind !== "projection") return `each row of lengths is scaled to sum to 1; ${stays}`;
  return "each row is scaled so that the sizes of its values, signs aside, sum to 1; what is left out and the bias stay on "
    + "the scale from before.";
}

/** Whether a kind has a map for each head. */
export function hasHeads(/** @type {string} */ kind) {
  return !(kind in SUMMED);
}

/**
 * The settings with everything that does not go together put right.
 *
 * @param {Settings} asked
 * @returns {Settings}
 */
export function settled(asked) {
  const settings = { ...asked };
  if (settings.kind === "scores" && settings.layer === "rollout") settings.layer = "mean";
  if (settings.kind === "scores" && settings.special === "renormalize") settings.special = "drop";
  const heads = headNames(settings);
  if (!heads.includes(settings.head) && !/^\d+$/.test(settings.head)) settings.head = heads[0];
  return settings;
}

/** The ways to put heads together that a kind has. */
export function headNames(/** @type {Settings} */ { kind }) {
  return kind === "norm" ? ["sum"] : ["mean", "max"];
}

/** Why no head can be chosen; empty when one can. */
export function headReason(/** @type {Settings} */ { kind, layer }) {
  if (!hasHeads(kind)) return `Heads: ${kind} exists only with its heads summed.`;
  if (layer === "rollout") return "Heads: rollout puts those of each layer together first.";
  return "";
}

/**
 * The body of POST /v1/attend for the map that is shown.
 *
 * @param {Settings} settings
 * @param {string[]} texts
 */
export function mapRequest(settings, texts) {
  const { kind, layer, head, unit, special } = settings;
  const heads = headReason(settings)
    ? {}
    : /^\d+$/.test(head) ? { heads: [Number(head)], head_reduce: "none" } : { heads: "all", head_reduce: head };
  const layers = layer === "mean" || layer === "rollout"
    ? { layers: "all", layer_reduce: layer }
    : { layers: [Number(layer)], layer_reduce: "none" };
  return { inputs: texts, kind, ...layers, ...heads, unit, special, decimals: 6 };
}

/**
 * The body of POST /v1/attend for every layer and head of one sentence; two bytes a number.
 *
 * @param {Settings} settings
 * @param {string} text
 */
export function everyHeadRequest({ kind, unit, special }, text) {
  return {
    inputs: [text], kind: hasHeads(kind) ? kind : "probs", layers: "all", layer_reduce: "none",
    heads: "all", head_reduce: "none", unit, special, encoding: "base64", dtype: "float16",
  };
}
