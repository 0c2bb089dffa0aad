import { isolated } from "./naming.js";

/**
 * The ways in which models score a text for a query. Each has a request, and turns its response into a ranking.
 *
 * @typedef {import("./attention.js").Unit} Unit
 * @typedef {{name: string, operations: string[], outputs: string[], labels: string[], pooling: string, prompts: Record<string, string>}} Model
 * @typedef {{label: string, value: number}} Term  a part of a score
 * @typedef {{score: number, rows: Unit[], columns: Unit[], contributions: number[][] | null, rest: Record<string, number> | null,
 *            query_effects: number[] | null, document_effects: number[] | null,
 *            matches: {query_unit: number, document_unit: number, value: number}[] | null,
 *            products: {token: string, value: number}[] | null}} Pair  the score of a text, and its reasons
 * @typedef {{label: string, pairs: Pair[], unavailable: string | null}} Ranking
 *   `pairs` has one element per text of the request; `unavailable` is why there are no contributions
 * @typedef {{name: string, meaning: string, route: "similarity" | "rerank", isSupported: (model: Model) => boolean,
 *            request: (query: string, documents: string[], model: Model) => object, ranking: (response: any) => Ranking}} Scoring
 */

/** @type {Record<string, string>} functions that are the negative of a distance */
const DISTANCES = { euclidean: "negative Euclidean distance", manhattan: "negative Manhattan distance" };

/** Kinds of pooling that use the vector of one token. */
const ONE_TOKEN = ["cls", "last"];

/** @type {Record<string, Scoring>} the one that /v1/rerank prefers first */
export const SCORINGS = {
  cross_encoder: {
    name: "cross-encoder",
    meaning: "The model reads the query and a text together, so the score (a logit) is not a sum over words. The words show the effect of removing each one.",
    route: "rerank",
    isSupported: isCrossEncoder,
    request: (query, documents) => ({ query, documents, effect: "occlusion", unit: "word", explain_top: documents.length, raw_scores: true }),
    ranking: rerankRanking,
  },
  maxsim: {
    name: "MaxSim of token vectors",
    meaning: "Each token has a vector. Each token of the query is matched with the most similar token of the text, and the score is the sum of "
      + "these similarities, or for some models their mean.",
    route: "similarity",
    isSupported: (model) => supports(model, "multi_vector"),
    request: (query, documents) => ({ queries: [query], documents, similarity: "maxsim", explain: true }),
    ranking: similarityRanking,
  },
  sparse: {
    name: "sparse vectors",
    meaning: "A text has a weight for some tokens of the vocabulary. The score usually is the sum of the products of the weights that both texts have.",
    route: "similarity",
    isSupported: (model) => supports(model, "sparse"),
    request: (query, documents) => ({ queries: [query], documents, similarity: "sparse", explain: true }),
    ranking: similarityRanking,
  },
  embedding: {
    name: "embeddings",
    meaning: "Each text has one vector, its embedding. If the model averages the vectors of the tokens, the score is a sum over pairs of words and special tokens.",
    route: "similarity",
    isSupported: (model) => supports(model, "pooled") && !isCrossEncoder(model),
    // The server rejects leave_one_out for pooling that uses one token.
    request: (query, documents, { pooling }) => ({
      queries: [query], documents, explain: true, unit: "word", effect: ONE_TOKEN.includes(pooling) ? "occlusion" : "leave_one_out",
    }),
    ranking: similarityRanking,
  },
};

/** Return the scoring of a model by its name, or the preferred one that the model supports, or null. */
export function scoringOf(/** @type {Model} */ model, /** @type {string | null} */ name) {
  if (name && SCORINGS[name].isSupported(model)) return name;
  return Object.keys(SCORINGS).find((key) => SCORINGS[key].isSupported(model)) ?? null;
}

/** Return why a model does not score texts. */
export function explainNoScoring(/** @type {Model} */ { name, labels }) {
  return `${isolated(name)} does not score texts for a query. It is a classifier with ${labels.length} labels: ${labels.map(isolated).join(", ")}.`;
}

/** Return why no pair of words contributes to a score of embeddings, as a key, or null. */
export function oneTokenPooling(/** @type {Model} */ { pooling }) {
  return ONE_TOKEN.includes(pooling) ? `${pooling}_pooling` : null;
}

/** Return whether a model reads the query and a text together. A model like Qwen3-Reranker does, but does not classify. */
function isCrossEncoder(/** @type {Model} */ { operations, labels }) {
  return operations.includes("rerank") && labels.length === 1;
}

/** Return whether a model ranks texts by their similarity, and has the vectors for it. */
function supports(/** @type {Model} */ { operations, outputs }, /** @type {string} */ output) {
  return operations.includes("rerank") && operations.includes("similarity") && outputs.includes(output);
}

/** @returns {Ranking} */
function similarityRanking(response) {
  const { similarity, queries: [{ units: rows }], documents, pairs, contributions_unavailable: unavailable } = response;
  return { label: DISTANCES[similarity] ?? similarity, unavailable, pairs: pairs.map((pair, place) => ({ ...NOTHING, ...pair, rows, columns: documents[place].units })) };
}

/** @returns {Ranking} */
function rerankRanking({ results }) {
  const pairs = results.toSorted((a, b) => a.index - b.index).map(({ relevance_score: score, explanation }) => {
    const { query_units: rows, document_units: columns, ...effects } = explanation;
    return { ...NOTHING, score, rows, columns, ...effects };
  });
  return { label: "score", unavailable: null, pairs };
}

const NOTHING = { contributions: null, rest: null, query_effects: null, document_effects: null, matches: null, products: null };
