import { element } from "./element.js";
import { bdi, listWords, separator } from "./naming.js";
import { formatNumber } from "./number.js";
import { distinctTexts } from "./words.js";

/** The similarity from which dictionary entries are identical, except for rounding. */
const IDENTICAL = 0.9995;
const LISTED_WORDS = 6;

/**
 * State in one sentence how similar the occurrences of a word are: as dictionary entries, and at a layer.
 *
 * @param {{occurrences: {text: string}[], numbers: number[], means: {group: string, name: string, values: number[]}[],
 *          staticMean: number, layer: number, place: number}} comparison `numbers`: sentence number per occurrence;
 *   `layer`: the shown layer; `place`: its index in the values
 */
export function finding({ occurrences, numbers, means, staticMean, layer, place }) {
  const texts = distinctTexts(occurrences);
  const inOne = new Set(numbers).size === 1;
  const subject = texts.length > 1
    ? ["The dictionary entries of ", ...listWords(texts.slice(0, LISTED_WORDS), "and", texts.length > LISTED_WORDS)]
    : [`As dictionary entries, the ${occurrences.length} occurrences of `, element("strong", {}, bdi(texts[0])),
      inOne ? ` in sentence ${numbers[0]}` : ""];
  const entries = staticMean > IDENTICAL ? "are identical: " : "have a similarity of ";
  const isOnlyPosition = layer === 0 && staticMean > IDENTICAL && means.some(({ values }) => values[place] <= IDENTICAL);
  const phraseOf = (/** @type {string} */ group) => (means.length === 1 && group === "unknown" ? " in context" : PHRASES[group]);
  const figures = means.flatMap(({ group, values }, index) => [
    index ? separator(index, means.length, "and") : "", figure(values[place], group), phraseOf(group),
  ]);
  return [...subject, ` ${entries}`, figure(staticMean, "static"), ". ",
    `${whenOf(layer)}, their similarity is `, ...figures, isOnlyPosition ? ", only because their positions differ." : "."];
}

/** Return whether occurrences are of different words: a mean over their pairs would say nothing. */
export function areDifferentWords(/** @type {{text: string}[]} */ occurrences) {
  return occurrences.length > 2 && distinctTexts(occurrences).length > 1;
}

/**
 * State which of different words are the most and the least similar at a layer.
 *
 * @param {{occurrences: {text: string}[], numbers: number[], pairs: import("./senses.js").Pair[], matrix: number[][], layer: number}} comparison
 *   `matrix`: similarities at the layer
 */
export function findingOfWords({ occurrences, numbers, pairs, matrix, layer }) {
  const ranked = pairs.toSorted((left, right) => matrix[right.a][right.b] - matrix[left.a][left.b]);
  const nameOf = (/** @type {number} */ place) => [element("strong", {}, bdi(occurrences[place].text)), ` (sentence ${numbers[place]})`];
  const state = (/** @type {import("./senses.js").Pair} */ { a, b, group }) =>
    [...nameOf(a), " and ", ...nameOf(b), ", ", figure(matrix[a][b], group)];
  return [`${whenOf(layer)}, the most similar of these words are `, ...state(ranked[0]), ", and the least similar ",
    ...state(ranked[ranked.length - 1]), "."];
}

/**
 * Explain layer 0. Models with rotary positions do not add positions to it, so that equal words have equal vectors.
 *
 * @param {number} mean similarity at layer 0, mean over the pairs
 * @param {number} staticMean the same of the dictionary entries
 */
export function noteOnLayer0(mean, staticMean) {
  const input = "Layer 0 is the input of the first layer";
  return staticMean > IDENTICAL && mean <= IDENTICAL
    ? `${input}: the dictionary entry with its position. Its values are below the dictionary entries only because the positions differ.`
    : `${input}.`;
}

function whenOf(/** @type {number} */ layer) {
  return layer === 0 ? "Before the first layer" : `After ${layer}\u00a0${layer === 1 ? "layer" : "layers"}`;
}

const PHRASES = { same: " for the same sense", other: " for different senses", unknown: " for unknown senses" };

function figure(/** @type {number} */ value, /** @type {string} */ group) {
  return element("strong", { className: `value ${group}` }, formatNumber(value));
}
