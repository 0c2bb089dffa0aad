import { element, svg } from "./element.js";
import { bdi } from "./naming.js";
import { dot, norm, scaled } from "./vector.js";

const WIDTH = 560;
const HEIGHT = 240;
const MARGIN = 26;
const ROUNDS = 200; // of the power iteration
const RADIUS = 11;

/**
 * The occurrences of a word as points in two dimensions, at one layer. The projection is the same for all layers: the two
 * directions in which the occurrences differ most after the last layer (principal components). Vectors are scaled to
 * length 1, and at each layer the mean of the occurrences is subtracted.
 */
export class Plane {
  constructor() {
    this.points = svg("g", {});
    this.trails = svg("g", {});
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "chart plane" }, this.trails, this.points);
    this.title = element("p", { className: "quiet" });
    this.note = element("p", { className: "quiet" });
    this.root = element("div", { className: "figure", hidden: true }, this.title, this.svg, this.note);
    /** @type {[number, number][][]} by layer and occurrence */
    this.places = [];
    /** @type {number[]} the share of the squared distances that the picture keeps, by layer */
    this.kept = [];
  }

  /**
   * @param {number[][][]} vectors by layer and occurrence
   */
  setVectors(vectors) {
    const centered = vectors.map(center);
    const axes = principalAxes(centered[centered.length - 1]);
    this.places = centered.map((occurrences) => occurrences.map((vector) => /** @type {[number, number]} */ (axes.map((axis) => dot(vector, axis)))));
    const total = (/** @type {number[][]} */ list) => list.reduce((sum, vector) => sum + dot(vector, vector), 0);
    this.kept = centered.map((occurrences, layer) => total(this.places[layer]) / (total(occurrences) || 1));
  }

  /** Forget the vectors. */
  clear() {
    this.places = [];
    this.hide();
  }

  hide() {
    this.root.hidden = true;
  }

  /**
   * Move the points to a layer.
   *
   * @param {{layer: number, words: string[], numbers: number[], senses: (string | null)[]}} view `words`: the distinct words; `numbers`: of the sentences
   */
  show({ layer, words, numbers, senses }) {
    this.root.hidden = this.places.length <= layer || this.places[0].length !== numbers.length;
    if (this.root.hidden) return;
    const at = fit(this.places.flat());
    this.trails.replaceChildren(...numbers.map((_, index) => svg("polyline", {
      class: `trail ${groupOf(senses[index])}`,
      points: this.places.slice(0, layer + 1).map((places) => at(places[index]).join(",")).join(" "),
    })));
    this.#drawPoints(numbers, senses);
    [...this.points.children].forEach((point, index) => {
      const [left, top] = at(this.places[layer][index]);
      /** @type {SVGElement} */ (point).style.transform = `translate(${left}px, ${top}px)`;
    });
    const named = words.length === 1 ? bdi(words[0]) : "the words";
    this.svg.setAttribute("aria-label", `The occurrences in two dimensions at layer ${layer}, by sentence: `
      + numbers.map((number, index) => `${number}${senses[index] ? `, sense ${senses[index]}` : ""}, at ${at(this.places[layer][index]).join(", ")}`).join("; "));
    const shapes = [senses.includes("A") && "circles: sense A", senses.includes("B") && "squares: sense B"].filter(Boolean).join(", ");
    this.title.replaceChildren("The vectors of ", named, `, by sentence${shapes ? ` (${shapes})` : ""}`);
    this.note.replaceChildren(layer === 0 ? "Before the first layer, no words are mixed yet: the picture begins here."
      : `Lines lead from layer 0 to layer ${layer}. Distances are approximate: two dimensions keep `
      + `${Math.round(100 * this.kept[layer])}% of the squared distances between the vectors of this layer.`);
  }

  /** Create the points, unless they exist: existing ones glide to their new places. */
  #drawPoints(/** @type {number[]} */ numbers, /** @type {(string | null)[]} */ senses) {
    const key = JSON.stringify([numbers, senses]);
    if (this.svg.dataset.key === key) return;
    this.svg.dataset.key = key;
    this.points.replaceChildren(...numbers.map((number, index) => {
      const group = groupOf(senses[index]);
      const shape = group === "same" ? svg("circle", { r: RADIUS, class: `dot ${group}` })
        : svg("rect", { x: -RADIUS, y: -RADIUS, width: 2 * RADIUS, height: 2 * RADIUS, class: `dot ${group}`, ...(group === "other" ? {} : { transform: "rotate(45)" }) });
      return svg("g", { class: "point" }, shape, svg("text", { y: 4, class: "middle" }, String(number)));
    }));
  }
}

/** Sense A is drawn in the color of the same sense, B in that of the other, an unknown sense in a third. */
function groupOf(/** @type {string | null} */ sense) {
  return sense === "A" ? "same" : sense === "B" ? "other" : "unknown";
}

/** Scale vectors to length 1, and subtract their mean. */
function center(/** @type {number[][]} */ vectors) {
  const units = vectors.map((vector) => scaled(vector, 1 / norm(vector)));
  const mean = units[0].map((_, place) => units.reduce((sum, unit) => sum + unit[place], 0) / units.length);
  return units.map((unit) => unit.map((component, place) => component - mean[place]));
}

/**
 * Return the first two principal components of centered vectors, by power iteration with the matrix of dot products. A
 * component without variance is 0.
 *
 * @param {number[][]} vectors
 */
export function principalAxes(vectors) {
  const gram = vectors.map((a) => vectors.map((b) => dot(a, b)));
  const axes = [];
  for (let component = 0; component < 2; component++) {
    let weights = vectors.map((_, index) => Math.cos(1 + index)); // any start that is not orthogonal to the component
    for (let round = 0; round < ROUNDS; round++) {
      const next = gram.map((row) => dot(row, weights));
      const length = norm(next);
      if (length < 1e-9) break;
      weights = scaled(next, 1 / length);
    }
    const value = dot(weights, gram.map((row) => dot(row, weights)));
    const axis = vectors[0].map((_, place) => vectors.reduce((sum, vector, index) => sum + weights[index] * vector[place], 0));
    const length = norm(axis);
    axes.push(value > 1e-9 && length > 0 ? scaled(axis, 1 / length) : scaled(axis, 0));
    gram.forEach((row, a) => row.forEach((_, b) => { row[b] -= value * weights[a] * weights[b]; }));
  }
  return axes;
}

/** Return a function from places to pixels. Both axes have the same scale, so that distances are comparable. */
function fit(/** @type {[number, number][]} */ places) {
  const ranges = [0, 1].map((axis) => {
    const values = places.map((place) => place[axis]);
    return { middle: (Math.min(...values) + Math.max(...values)) / 2, extent: Math.max(...values) - Math.min(...values) };
  });
  const [x, y] = ranges;
  const scale = Math.min((WIDTH - 2 * MARGIN) / Math.max(x.extent, 1e-6), (HEIGHT - 2 * MARGIN) / Math.max(y.extent, 1e-6));
  return (/** @type {[number, number]} */ [a, b]) => [
    (WIDTH / 2 + scale * (a - x.middle)).toFixed(1), (HEIGHT / 2 - scale * (b - y.middle)).toFixed(1),
  ];
}
