import { element } from "./element.js";

/** The terms of the walkthrough, in plain words. */
export const TERMS = {
  token: "A piece of text that the model reads as one unit: a word, a part of a word, or a punctuation mark.",
  "special token": "A token that is not part of the text, such as [CLS] at the beginning and [SEP] at the end.",
  vocabulary: "The list of all tokens that a model knows. A token is a row of this list.",
  vector: "A list of numbers. Two vectors are similar if they point in the same direction.",
  embedding: "The vector that a table has for each token of the vocabulary. It does not depend on the sentence.",
  position: "Where a token is in the text. Without it, attention would not know the order of the tokens.",
  "hidden state": "The vector of a token between two layers. It depends on the whole text.",
  layer: "One round of attention and feed-forward network. Layers have the same form and different weights.",
  head: "One of several attentions that a layer computes side by side, each with its own matrices.",
  query: "The vector that a token compares with the keys of all tokens: what it looks for.",
  key: "The vector by which a token is found: what it offers.",
  value: "The vector that a token passes on to the tokens that attend to it.",
  "dot product": "The sum of the products of two vectors, component by component. It is large if they point the same way.",
  scaling: "The division of dot products by the square root of their number of components, so that they do not grow with it.",
  mask: "The rule that says which tokens a token must not attend to. Their weight becomes 0.",
  softmax: "The function that turns any numbers into positive shares that sum to 1. Larger numbers get larger shares.",
  "attention weight": "The share of a token in the weighted sum of values. It says how vectors are mixed, not why a model decides.",
  "attention sink": "A token, often a special one, to which a head gives most weight if nothing else matches.",
  "residual connection": "A sum of the input and the output of a part, so that the part only adds to the vector.",
  "layer norm": "A rescaling of a vector, so that its numbers have a fixed size.",
  "feed-forward network": "Two matrices with a nonlinear function between them, applied to each token by itself.",
  "cosine similarity": "The cosine of the angle between two vectors: 1 for the same direction, 0 for unrelated ones.",
};

/** The folded list of terms. `term` creates links to it. */
export class Glossary {
  constructor() {
    this.entries = new Map(Object.entries(TERMS).map(([name, meaning]) => {
      const title = element("dt", { tabIndex: -1 }, name);
      return [name, { title, meaning: element("dd", {}, meaning) }];
    }));
    this.root = element("details", { className: "fold", id: "glossary" }, element("summary", {}, "Glossary"),
      element("dl", { className: "facts" }, ...[...this.entries.values()].flatMap(({ title, meaning }) => [title, meaning])));
  }

  /** Create a link to a term, with another form of its name if the sentence needs one. */
  term(/** @type {string} */ name, text = name) {
    return element("button", {
      type: "button", className: "term", title: TERMS[name],
      on: { click: () => {
        this.root.open = true;
        const { title } = /** @type {{title: HTMLElement}} */ (this.entries.get(name));
        title.scrollIntoView({ block: "center" });
        title.focus();
      } },
    }, text);
  }
}
