import { element } from "./element.js";

/** The terms of the walkthrough, in plain words. */
export const TERMS = {
  token: "A piece of text that the model reads as one unit: a word, a part of a word, or a punctuation mark.",
  "special token": "A token that is not part of the text, such as [CLS] at the beginning and [SEP] at the end.",
  vocabulary: "The list of all tokens that a model knows. Each has a number.",
  vector: "A list of numbers. Two vectors are similar if they point in the same direction.",
  length: "Of a vector: the square root of the sum of the squares of its numbers. Not how many numbers it has.",
  matrix: "A table of learned numbers that turns a vector into another one, also of another size.",
  embedding: "The dictionary entry of a token: the vector that a table has for it. It does not depend on the sentence.",
  position: "Where a token is in the text. Without it, attention would not know the order of the tokens.",
  "hidden state": "The vector of a token between two layers. It depends on the whole text.",
  layer: "One round of attention and feed-forward network. All layers work in the same way, with their own learned numbers.",
  attention: "The part of a layer in which each token takes in vectors of the other tokens, some more and some less.",
  head: "One of several attentions that a layer computes side by side, each with its own matrices.",
  query: "The vector (q) that a token compares with the keys of all tokens: what it looks for.",
  key: "The vector (k) that a token is found by: other tokens compare their queries with it.",
  value: "The vector (v) that a token passes on to the tokens that attend to it.",
  "dot product": "The sum of the products of two vectors, number by number. It is large if they point the same way.",
  score: "How well the query of a token fits the key of another one: their dot product, scaled.",
  scaling: "The division of dot products by the square root of their number of products, so that they do not grow with it.",
  mask: "The rule that says which tokens a token must not attend to. Their weight becomes 0.",
  "causal mask": "A mask that hides the tokens after the one that attends.",
  softmax: "A function that turns any numbers into positive shares that sum to 1. Larger numbers get larger shares.",
  "attention weight": "The share of a token in the weighted sum of values. It says how vectors are mixed, not why a model decides.",
  "attention sink": "A token, often a special one, to which a head gives most weight if no other token fits.",
  "residual connection": "A sum of the input and the output of a part, so that the part only adds to the vector.",
  "layer norm": "A rescaling of the numbers of a vector, to mean 0 and standard deviation 1 or by their size alone, followed by learned factors.",
  "feed-forward network": "Two matrices with a function between them, applied to the vector of each token separately.",
  "cosine similarity": "The cosine of the angle between two vectors: 1 for the same direction, 0 for unrelated ones.",
};

/** The folded list of terms, and the links to them. A link shows the meaning in `meaning`, below the sentence. */
export class Glossary {
  constructor() {
    this.meaning = element("p", { className: "meaning", role: "status" });
    this.root = element("details", { className: "fold", id: "glossary" }, element("summary", {}, "Glossary"),
      element("dl", { className: "facts" }, ...Object.entries(TERMS).flatMap(([name, meaning]) => [element("dt", {}, name), element("dd", {}, meaning)])));
  }

  /** Create a link to a term, with another form of its name if the sentence needs one. */
  term(/** @type {string} */ name, text = name) {
    return element("button", {
      type: "button", className: "term", title: TERMS[name],
      on: { click: () => this.meaning.replaceChildren(element("strong", {}, name), `: ${TERMS[name]}`) },
    }, text);
  }

  /** Remove the meaning that is shown. */
  clear() {
    this.meaning.replaceChildren();
  }
}
