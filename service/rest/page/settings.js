/**
 * The settings of the view, their descriptions, and the requests for them.
 *
 * @typedef {{unit: string, kind: string, layer: string, head: string, special: string, self: boolean}} Settings
 * @typedef {{num_hidden_layers: number, num_attention_heads: number, attention_kinds: string[]}} Model
 */

/** The default view: of all views, its values agree best with the measured effect of masking a word. */
export const DEFAULTS = {
  unit: "word", kind: "projection", layer: "rollout", head: "mean", special: "drop", self: false,
};

/**
 * What the cells of a map state about a query (row) and a key (column).
 *
 * @type {Record<string, {title: string, row: string, cell: (query: string, key: string, value: string) => string}>}
 */
export const RELATIONS = {
  contribution: {
    title: "Contributions to",
    row: "Each row shows how much the words in the columns contribute to its word.",
    cell: (query, key, value) => `${key} contributes ${value} to ${query}`,
  },
  attention: {
    title: "Attention of",
    row: "Each row shows how much its word attends to the words in the columns.",
    cell: (query, key, value) => `${query} attends to ${key} with weight ${value}`,
  },
  scores: {
    title: "Attention scores of",
    row: "Each row shows the attention scores of its word for the words in the columns.",
    cell: (query, key, value) => `${query} attends to ${key} with score ${value}`,
  },
};

export const KINDS = {
  projection: {
    name: "projection: share of the vector",
    meaning: "The share that each word contributes to a word's new vector. Negative shares point away from that vector.",
    rolled: "The share that each word contributes to a word's vector through all layers, computed from absolute values.",
    relation: "contribution",
  },
  probs: {
    name: "probs: attention weights",
    meaning: "The attention weights: how much each word attends to each other word.",
    rolled: "The mean attention weights of the heads, with half of the weight of each layer on the residual connection.",
    relation: "attention",
  },
  scores: {
    name: "scores: before the softmax",
    meaning: "How well the query of a word matches each key. Scores can be any positive or negative number.",
    rolled: "",
    relation: "scores",
  },
  norm: {
    name: "norm: length of weighted values",
    meaning: "The length of the vector that each word contributes. Attention to a word with a value vector near zero counts little.",
    rolled: "The lengths of the vectors that words contribute, as shares, without the residual connection.",
    relation: "contribution",
  },
  block_norm: {
    name: "block_norm: with residual and layer norm",
    meaning: "The length of each word's contribution, including the residual connection and the layer norm.",
    rolled: "The lengths of the contributions, as shares, including the residual connection and the layer norm.",
    relation: "contribution",
  },
};

const SPECIALS = {
  drop: "Special tokens such as [CLS] are excluded. The last column shows their sum.",
  keep: "Special tokens such as [CLS] are included. They often receive much attention.",
};

const SUMMED = { projection: true, block_norm: true };

/** Describe the values of a kind. */
export function kindMeaning(/** @type {Settings} */ { kind, layer }) {
  return layer === "rollout" ? KINDS[kind].rolled : KINDS[kind].meaning;
}

/** Describe the selected layer. */
export function layerMeaning(/** @type {Settings} */ { layer }) {
  if (layer === "rollout") return "Rollout: the product of the maps of all layers, from the embeddings to the last layer.";
  if (layer === "mean") return "Mean: the average of the maps of all layers.";
  if (layer === "1") return "Layer 1: its inputs are the embeddings of the words.";
  return `Layer ${layer}: the layers before it have already mixed its input vectors.`;
}

/** Describe the handling of special tokens. */
export function specialMeaning(/** @type {Settings} */ { kind, layer, special }) {
  if (special === "renormalize") return `Special tokens are excluded. ${scaling(kind, layer)}`;
  return kind === "scores" && special === "drop" ? "Special tokens such as [CLS] are excluded." : SPECIALS[special];
}

function scaling(/** @type {string} */ kind, /** @type {string} */ layer) {
  if (kind === "projection" && layer !== "rollout") {
    return "The absolute values of each row are scaled to sum to 1. The excluded mass and the bias keep their original scale.";
  }
  return "Each row is scaled to sum to 1. The excluded mass keeps its original scale.";
}

/** Return whether a kind has one map per head. */
export function hasHeads(/** @type {string} */ kind) {
  return !(kind in SUMMED);
}

/**
 * Return the settings with incompatible values replaced.
 *
 * @param {Settings} requested
 * @returns {Settings}
 */
export function compatible(requested) {
  const settings = { ...requested };
  if (settings.kind === "scores" && settings.layer === "rollout") settings.layer = "mean";
  if (settings.kind === "scores" && settings.special === "renormalize") settings.special = "drop";
  const heads = headNames(settings);
  if (!heads.includes(settings.head) && !/^\d+$/.test(settings.head)) settings.head = heads[0];
  return settings;
}

/** Return the supported ways to reduce heads. */
export function headNames(/** @type {Settings} */ { kind }) {
  return kind === "norm" ? ["sum"] : ["mean", "max"];
}

/** Return why no head can be selected, or "" if one can. */
export function headReason(/** @type {Settings} */ { kind, layer }) {
  if (!hasHeads(kind)) return `Head: kind ${kind} always covers all heads.`;
  if (layer === "rollout") return "Head: rollout combines the heads of each layer first.";
  return "";
}

/**
 * Return the body of POST /v1/attend for the current view.
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
  return { inputs: texts, kind, ...layers, ...heads, unit, special_tokens: special, decimals: 6 };
}

/**
 * Return the body of POST /v1/attend for all layers and heads of one sentence, in float16.
 *
 * @param {Settings} settings
 * @param {string} text
 */
export function allHeadsRequest({ kind, unit, special }, text) {
  return {
    inputs: [text], kind: hasHeads(kind) ? kind : "probs", layers: "all", layer_reduce: "none",
    heads: "all", head_reduce: "none", unit, special_tokens: special,
    encoding_format: "base64", dtype: "float16",
  };
}
