import { applyTint } from "./attention.js";
import { element, scroller } from "./element.js";
import { largestOf, PROPORTIONAL, sum } from "./heatmap.js";
import { bdi } from "./naming.js";
import { formatNumber } from "./number.js";

const LISTED_TERMS = 20;
const REST = { special_tokens: "special tokens", prompt: "prompt", bias: "bias", dropped: "dropped pairs" };

/** @typedef {import("./scorings.js").Pair} Pair */

/** Create the table of the terms that a score of embeddings is the sum of. */
export function sumTable(/** @type {Pair} */ { contributions, rest, score }) {
  const terms = [["pairs of words", sum((contributions ?? []).map(sum))],
    ...Object.entries(REST).map(([name, label]) => [label, rest?.[name] ?? 0]).filter(([, value]) => value !== 0)];
  const row = (label, value, className = "") => element("tr", { className }, element("th", { scope: "row" }, label),
    element("td", {}, formatNumber(value)));
  return element("table", { className: "numbers", id: "terms" },
    element("caption", {}, element("span", {}, "The score as a sum")),
    element("tbody", {}, ...terms.map(([label, value]) => row(label, value)), row("score", score, "total")));
}

/** Return the part of a MaxSim score of each token of the query, and the sum of those matched with each token of the text. */
export function matchSums(/** @type {Pair} */ { matches, rows, columns }) {
  const [query, document] = [rows.map(() => 0), columns.map(() => 0)];
  for (const match of matches ?? []) {
    query[match.query_unit] += match.value;
    document[match.document_unit] += match.value;
  }
  return [query, document];
}

/** Create the table of the matched tokens that a MaxSim score is the sum of. */
export function matchTable(/** @type {Pair} */ { matches, rows, columns, rest, score }, /** @type {number} */ number) {
  return termTable(`The score as a sum: tokens of the query, and the most similar token of text ${number}`, ["query", `text ${number}`],
    (matches ?? []).map(({ query_unit: query, document_unit: document, value }) =>
      ({ names: [rows[query].text, columns[document].text], value })), rest?.dropped ?? 0, score);
}

/** Create the table of the shared tokens whose products add up to a score of sparse vectors, or a sentence without any. */
export function productTable(/** @type {Pair} */ { products, rest, score }, /** @type {number} */ number) {
  if (!products?.length) return element("p", { id: "score-terms" }, `The score is 0: no token has a weight in both the query and text ${number}.`);
  return termTable(`The score as a sum: products of the weights that the query and text ${number} share`, ["token"],
    (products ?? []).map(({ token, value }) => ({ names: [token], value })), rest?.dropped ?? 0, score);
}

/**
 * Create a table of terms, largest first, and the score that they add up to.
 *
 * @param {string} caption
 * @param {string[]} headings of the names
 * @param {{names: string[], value: number}[]} terms
 * @param {number} dropped the sum of the terms that the response does not list
 * @param {number} score
 */
function termTable(caption, headings, terms, dropped, score) {
  const listed = terms.slice(0, LISTED_TERMS);
  const others = sum(terms.slice(LISTED_TERMS).map(({ value }) => value)) + dropped;
  const largest = largestOf([listed.map(({ value }) => value)]);
  const row = (names, value, className) => {
    const [first, ...more] = names;
    const cell = element("td", { className: className && "extra" }, formatNumber(value));
    if (!className) applyTint(cell, value, largest, PROPORTIONAL);
    return element("tr", { className }, element("th", { scope: "row" }, bdi(first)), ...more.map((name) => element("td", {}, bdi(name))), cell);
  };
  const blanks = headings.slice(1).map(() => "");
  return scroller("Terms of the score", element("table", { className: "matrix row", id: "score-terms" },
    element("caption", {}, element("span", {}, `${caption}.`)),
    element("thead", {}, element("tr", {}, ...[...headings, "value"].map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...listed.map(({ names, value }) => row(names, value, "")),
      terms.length > LISTED_TERMS || dropped ? row(["others", ...blanks], others, "others") : null,
      row(["score", ...blanks], score, "total"))));
}
