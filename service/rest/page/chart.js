import { formatNumber } from "./number.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 300;
const LINE = 18;
const BELOW = 22;
const MARGIN = { top: 24, right: 20, bottom: 44, left: 48 };

/**
 * Return a line chart over layers 0..L as SVG.
 *
 * @param {{className: string, values: number[], label?: string, marked?: boolean}[]} lines
 * @param {string} description text alternative
 * @param {string} measure title of the vertical axis
 * @param {number} width in pixels
 */
export function lineChart(lines, description, measure, width) {
  const lowest = Math.min(0.5, ...lines.flatMap(({ values }) => values));
  const floor = Math.floor(lowest * 5) / 5;
  const count = lines[0].values.length;
  const x = (/** @type {number} */ layer) =>
    MARGIN.left + (layer / Math.max(1, count - 1)) * (width - MARGIN.left - MARGIN.right);
  const y = (/** @type {number} */ value) =>
    MARGIN.top + ((1 - value) / (1 - floor)) * (HEIGHT - MARGIN.top - MARGIN.bottom);

  const chart = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", class: "chart", "aria-label": description });
  for (let value = floor; value < 1.001; value += 0.1 * Math.ceil((1 - floor) / 0.6)) {
    chart.append(svg("line", { class: "rule", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }));
    chart.append(text(formatNumber(value, 1), { x: MARGIN.left - 8, y: y(value) + 4, class: "tick end" }));
  }
  for (let layer = 0; layer < count; layer += Math.ceil(count / 13)) {
    chart.append(text(String(layer), { x: x(layer), y: HEIGHT - MARGIN.bottom + 20, class: "tick middle" }));
  }
  chart.append(text("layer", { x: width - MARGIN.right, y: HEIGHT - 6, class: "tick end" }));
  chart.append(text(measure, { x: 4, y: 12, class: "tick" }));

  for (const { className, values, label, marked } of lines) {
    const points = values.map((value, layer) => `${x(layer).toFixed(1)},${y(value).toFixed(1)}`);
    chart.append(svg("polyline", { class: `curve ${className}`, points: points.join(" ") }));
    if (marked) values.forEach((value, layer) => {
      chart.append(svg("circle", { class: `dot ${className}`, cx: x(layer), cy: y(value), r: 3.5 }));
    });
  }
  const named = lines.filter(({ label }) => label).map((line) => ({ ...line, end: y(line.values[count - 1]) }));
  for (const { label = "", className, labelY } of placeLabels(named)) {
    chart.append(text(label, { x: width - MARGIN.right, y: labelY, class: `name end ${className}` }));
  }
  return chart;
}

/**
 * Place the labels of lines without overlaps: above their lines, or below the lowest line if there is space.
 *
 * @template {{end: number}} T
 * @param {T[]} lines
 */
function placeLabels(lines) {
  const ordered = lines.toSorted((a, b) => b.end - a.end);
  let above = Infinity;
  return ordered.map((line, rank) => {
    const below = rank === 0 && lines.length > 1 && line.end + BELOW < HEIGHT - MARGIN.bottom;
    const labelY = Math.min(line.end + (below ? BELOW : -10), above - LINE);
    above = labelY;
    return { ...line, labelY };
  });
}

function svg(/** @type {string} */ tag, /** @type {Record<string, string | number>} */ attributes) {
  const node = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  return node;
}

function text(/** @type {string} */ content, /** @type {Record<string, string | number>} */ attributes) {
  const node = svg("text", attributes);
  node.textContent = content;
  return node;
}
