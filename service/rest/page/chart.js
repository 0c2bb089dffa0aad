import { svg } from "./element.js";
import { formatNumber } from "./number.js";

const HEIGHT = 240;
const LINE = 18;
const BELOW = 22;
const TICKS = 8;
const WIDE = 520; // width from which the labels are beside the lines
const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
const MARGIN = { top: 30, bottom: 44, left: 56 };
const RIGHT = { wide: 156, narrow: 20 };
const FIRST_LABEL = 14;

/**
 * @typedef {{className: string, values: number[], label?: string, marked?: boolean, title?: string}} Line  `marked`: with a
 *   dot per layer; `title`: shown when the pointer is on the line
 */

/**
 * Return the range of the vertical axis, with a distance of its ticks. The values use the whole axis.
 *
 * @param {number[]} values
 */
export function axis(values) {
  const [lowest, highest] = [Math.min(...values), Math.max(...values)];
  const step = STEPS.find((size) => (highest - lowest) / size <= TICKS) ?? 0.5;
  const low = Math.floor((lowest + 1e-6) / step) * step;
  const high = Math.ceil((highest - 1e-6) / step) * step;
  return { low, high: Math.max(high, low + step), step };
}

/**
 * Return a line chart as SVG, over layers 0..L unless `across` says otherwise.
 *
 * @param {Line[]} lines
 * @param {{description: string, measure: string, width: number, layer: number, across?: string, first?: number}} options
 *   `description`: text alternative; `measure`: title of the vertical axis; `width`: in pixels; `layer`: the marked layer;
 *   `across`: title of the horizontal axis, whose numbers begin at `first`
 */
export function lineChart(lines, { description, measure, width, layer: markedLayer, across = "layer", first = 0 }) {
  const { low, high, step } = axis(lines.flatMap(({ values }) => values));
  const count = lines[0].values.length;
  const right = width < WIDE ? RIGHT.narrow : RIGHT.wide;
  const x = (/** @type {number} */ layer) =>
    MARGIN.left + (layer / Math.max(1, count - 1)) * (width - MARGIN.left - right);
  const y = (/** @type {number} */ value) =>
    MARGIN.top + ((high - value) / (high - low)) * (HEIGHT - MARGIN.top - MARGIN.bottom);

  const chart = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", class: "chart", "aria-label": description });
  for (let tick = 0; low + tick * step < high + step / 2; tick++) {
    const place = y(low + tick * step);
    chart.append(svg("line", { class: "rule", x1: MARGIN.left, x2: width - right, y1: place, y2: place }));
    chart.append(text(formatNumber(low + tick * step), { x: MARGIN.left - 8, y: place + 4, class: "tick end" }));
  }
  for (let layer = 0; layer < count; layer += Math.ceil(count / 13)) {
    const chosen = layer === markedLayer ? " chosen" : "";
    chart.append(text(String(layer + first), { x: x(layer), y: HEIGHT - MARGIN.bottom + 20, class: `tick middle${chosen}` }));
  }
  chart.append(text(across, { x: width - right, y: HEIGHT - 6, class: "tick end" }));
  chart.append(text(low > 0 ? `${measure}, from ${formatNumber(low)}` : measure, { x: 4, y: 12, class: "tick" }));
  const place = x(markedLayer).toFixed(1);
  chart.append(svg("line", { class: "mark", x1: place, x2: place, y1: MARGIN.top - 6, y2: HEIGHT - MARGIN.bottom + 6 }));

  for (const { className, values, marked, title } of lines) {
    const points = values.map((value, layer) => `${x(layer).toFixed(1)},${y(value).toFixed(1)}`);
    const line = svg("polyline", { class: `curve ${className}`, points: points.join(" ") });
    if (title) line.append(svg("title", {}, title));
    chart.append(line);
    if (marked) values.forEach((value, layer) => {
      const chosen = layer === markedLayer;
      const dot = { class: `dot ${className}${chosen ? " chosen" : ""}`, cx: x(layer).toFixed(1), cy: y(value).toFixed(1) };
      chart.append(svg("circle", { ...dot, r: chosen ? 5.5 : 3.5 }));
    });
  }
  const named = lines.filter(({ label }) => label).map((line) => ({ ...line, end: y(line.values[count - 1]) }));
  const labels = width < WIDE ? placeAbove(named) : placeBeside(named);
  for (const { label = "", className, labelY } of labels) {
    const place = width < WIDE ? { x: width - right, class: `name end ${className}` } : { x: width - right + 12, class: `name ${className}` };
    chart.append(text(label, { ...place, y: labelY }));
  }
  return chart;
}

/**
 * Place the labels of lines without overlaps: above their lines, or below the lowest line if there is space.
 *
 * @template {{end: number}} T
 * @param {T[]} lines
 */
function placeAbove(lines) {
  const ordered = lines.toSorted((a, b) => b.end - a.end);
  let above = Infinity;
  return ordered.map((line, rank) => {
    const below = rank === 0 && lines.length > 1 && line.end + BELOW < HEIGHT - MARGIN.bottom;
    const labelY = Math.min(line.end + (below ? BELOW : -10), above - LINE);
    above = labelY;
    return { ...line, labelY };
  });
}

/**
 * Place the labels of lines beside their ends without overlaps.
 *
 * @template {{end: number}} T
 * @param {T[]} lines
 */
function placeBeside(lines) {
  let above = Infinity;
  const placed = lines.toSorted((a, b) => b.end - a.end).map((line) => {
    above = Math.min(line.end + 4, above - LINE);
    return { ...line, labelY: above };
  });
  return placed.reverse().map((line, rank) => ({ ...line, labelY: Math.max(line.labelY, FIRST_LABEL + rank * LINE) }));
}

function text(/** @type {string} */ content, /** @type {Record<string, string | number>} */ attributes) {
  return svg("text", attributes, content);
}
