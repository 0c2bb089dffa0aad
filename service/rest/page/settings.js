/**
 * The settings of the view, their descriptions, and the requests for them. `layer` is the position of the slider: 0 to
 * L, or null for the last layer. `combine` states which layers a map covers.
 *
 * @typedef {{unit: string, kind: string, combine: string, layer: number | null, head: string, special: string,
 *            segments: string, self: boolean, view: string}} Settings
 * @typedef {{name: string, num_hidden_layers: number, num_attention_heads: number, unknown_token_id: number | null, attention_kinds: string[], operations: string[]}} Model
 */

/**
 * The settings with which "Explore layers and heads" opens: attention weights.
 *
 * @type {Settings}
 */
export const DEFAULTS = {
  unit: "word", kind: "probs", combine: "none", layer: null, head: "mean", special: "drop", segments: "all", self: false,
  view: "table",
};

/** The view while that part is closed: of all views, its values agree best with the measured effect of masking a word. */
export const CLOSED = { ...DEFAULTS, kind: "projection", combine: "rollout" };

/** The supported values of each setting with fixed values. */
export const VALUES = {
  unit: ["word", "token"],
  kind: ["probs", "projection", "scores", "norm", "block_norm"],
  combine: ["none", "mean", "rollout"],
  special: ["drop", "renormalize", "keep"],
  segments: ["all", "a_to_a", "a_to_b", "b_to_a", "b_to_b"],
  view: ["table", "lines"],
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

/** @type {Record<string, {name: string, meaning: string, rolled: string, relation: string, more?: boolean}>} */
export const KINDS = {
  probs: {
    name: "probs: attention weights",
    meaning: "The attention weights: how much each word attends to each other word.",
    rolled: "The mean attention weights of the heads, with half of the weight of each layer on the residual connection.",
    relation: "attention",
  },
  projection: {
    name: "projection: share of the vector",
    meaning: "The share that each word contributes to a word's new vector. Negative shares point away from that vector.",
    rolled: "The share that each word contributes to a word's vector through all layers, computed from absolute values.",
    relation: "contribution",
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
    more: true,
    relation: "contribution",
  },
  block_norm: {
    name: "block_norm: with residual and layer norm",
    meaning: "The length of each word's contribution, including the residual connection and the layer norm.",
    rolled: "The lengths of the contributions, as shares, including the residual connection and the layer norm.",
    more: true,
    relation: "contribution",
  },
};

const SPECIALS = {
  drop: "Special tokens such as [CLS] are excluded. The last column shows their sum.",
  keep: "Special tokens such as [CLS] are included. They often receive much attention.",
};

const EVERY_HEAD = {
  layers: "all", layer_reduce: "none", heads: "all", head_reduce: "none", encoding_format: "base64", dtype: "float16",
};

const SUMMED = { projection: true, block_norm: true };

/** Describe the values of a kind. */
export function kindMeaning(/** @type {Settings} */ { kind, combine }) {
  return combine === "rollout" ? KINDS[kind].rolled : KINDS[kind].meaning;
}

/** Describe the covered layers. */
export function layerMeaning(/** @type {Settings} */ { combine, layer }, /** @type {Model} */ { num_hidden_layers: count }) {
  const last = Math.max(1, layer ?? count);
  if (combine === "rollout") return `Rollout: the product of the maps of layers 1 to ${last}, from the embeddings on.`;
  if (combine === "mean") return `Mean: the average of the maps of layers 1 to ${last}.`;
  if (last === 1) return "Layer 1: its inputs are the embeddings of the words.";
  return `Layer ${last}: its inputs are vectors that the layers before it have already mixed.`;
}

/** Describe the handling of special tokens. */
export function specialMeaning(/** @type {Settings} */ { kind, combine, special }) {
  if (special === "renormalize") return `Special tokens are excluded. ${scaling(kind, combine)}`;
  return kind === "scores" && special === "drop" ? "Special tokens such as [CLS] are excluded." : SPECIALS[special];
}

function scaling(/** @type {string} */ kind, /** @type {string} */ combine) {
  if (kind === "projection" && combine !== "rollout") {
    return "The absolute values of each row are scaled to sum to 1. The columns “excluded” and “bias” are not scaled.";
  }
  return "Each row is scaled to sum to 1. The column “excluded” is not scaled.";
}

/** Return whether a kind has one map per head. */
export function hasHeads(/** @type {string} */ kind) {
  return !(kind in SUMMED);
}

/**
 * Return the settings with incompatible values replaced.
 *
 * @param {Settings} requested
 * @param {{model?: Model | null, pairs: boolean, exploring?: boolean}} context `pairs`: whether all inputs are pairs;
 *   `exploring`: whether the part with the settings is open; otherwise only the layer has an effect
 */
export function compatible(requested, { model = null, pairs, exploring = true }) {
  const settings = exploring ? { ...requested } : { ...CLOSED, layer: requested.layer };
  if (model && !model.attention_kinds.includes(settings.kind)) settings.kind = "probs";
  if (model && (settings.layer ?? 0) >= model.num_hidden_layers) settings.layer = null;
  if (settings.kind === "scores" && settings.combine === "rollout") settings.combine = "mean";
  if (settings.kind === "scores" && settings.special === "renormalize") settings.special = "drop";
  if (!pairs) settings.segments = "all";
  const heads = headNames(settings);
  const isHead = isNumber(settings.head) && (!model || Number(settings.head) < model.num_attention_heads);
  if (!heads.includes(settings.head) && !isHead) settings.head = heads[0];
  return settings;
}

/** Return whether a model is known, and has hidden states and attention maps. */
export function hasMaps(/** @type {Model | null} */ model) {
  return model !== null && model.operations.includes("attend");
}

/** Return the supported ways to reduce heads. */
export function headNames(/** @type {{kind: string}} */ { kind }) {
  return kind === "norm" ? ["sum"] : ["mean", "max"];
}

/** Return why no head can be selected, or "" if one can. */
export function headReason(/** @type {Settings} */ { kind, combine }) {
  if (!hasHeads(kind)) return `Head: kind ${kind} always covers all heads.`;
  if (combine === "rollout") return "Head: rollout combines the heads of each layer first.";
  return "";
}

function isNumber(/** @type {string} */ head) {
  return /^\d+$/.test(head);
}

/** Return the layers of a request. Layer 0 has no map: its request is that of layer 1, for the units. */
function layersOf(/** @type {Settings} */ { combine, layer }) {
  const last = layer === null ? null : Math.max(1, layer);
  if (combine === "none") return { layers: [last ?? -1], layer_reduce: "none" };
  if (last === null) return { layers: "all", layer_reduce: combine };
  return { layers: Array.from({ length: last }, (_, index) => index + 1), layer_reduce: combine };
}

/**
 * Return the body of POST /v1/attend for the current view.
 *
 * @param {Settings} settings
 * @param {(string | object)[]} inputs
 */
export function mapRequest(settings, inputs) {
  const { kind, head, unit, special, segments } = settings;
  const heads = headReason(settings)
    ? {}
    : isNumber(head) ? { heads: [Number(head)], head_reduce: "none" } : { heads: "all", head_reduce: head };
  const part = segments === "all" ? {} : { segments };
  return { inputs, kind, ...layersOf(settings), ...heads, unit, special_tokens: special, ...part, decimals: 6 };
}

/**
 * Return the body of POST /v1/attend for all layers and heads of one sentence, in float16.
 *
 * @param {Settings} settings
 * @param {string | object} input
 */
export function allHeadsRequest({ kind, unit, special, segments }, input) {
  const part = segments === "all" ? {} : { segments };
  return { inputs: [input], kind: hasHeads(kind) ? kind : "probs", ...EVERY_HEAD, unit, special_tokens: special, ...part };
}

/**
 * Return the body of POST /v1/attend for the names of the heads: attention weights between tokens.
 *
 * @param {(string | object)[]} inputs
 */
export function headNamesRequest(inputs) {
  return { inputs, kind: "probs", ...EVERY_HEAD, unit: "token", special_tokens: "keep" };
}
