import { element, scroller } from "./element.js";
import { bdi } from "./naming.js";
import { formatBytes, formatCount, formatNumber } from "./number.js";

/**
 * @typedef {{objective: string, initial_model: string | null, teacher: string | null,
 *   data: {name: string, size: number}[], steps: number, tokens: number, precision: string, validation_loss: number}} Training
 * @typedef {{task: string, file: string, measure: string, value: number, low: number | null, high: number | null}} Evaluation
 * @typedef {{name: string, source: string, license: string | null, attention: string, training: Training | null,
 *   evaluations: Evaluation[]}} ModelCard
 */

const ATTENTION = {
  bidirectional: "Each token attends to all tokens of its text.",
  causal: "Each token attends to itself and to the tokens before it, never to later ones.",
};

/** Show the training, source, license, attention and evaluations of the model in a folded part. */
export function showModel(/** @type {HTMLElement} */ root, /** @type {ModelCard} */ model) {
  root.hidden = false;
  const { training, evaluations } = model;
  const facts = [
    ["Name", bdi(model.name)],
    ...(training ? trainingFacts(training) : [["Training", "Trained by others."]]),
    ["Source", bdi(model.source)],
    ["License", model.license ? bdi(model.license) : "unknown"],
    ["Attention", ATTENTION[model.attention]],
  ];
  root.querySelector(".body")?.replaceChildren(
    element("dl", { className: "facts" },
      ...facts.flatMap(([term, description]) => [element("dt", {}, term), element("dd", {}, description)])),
    ...(evaluations.length ? [evaluationTable(evaluations)] : []),
  );
}

/** @returns {[string, Node | string][]} */
function trainingFacts(/** @type {Training} */ training) {
  const { objective, steps, tokens, precision, data, initial_model: initial, teacher } = training;
  return [
    ["Training", element("span", {}, bdi(objective), `: ${formatCount(steps)} steps over ${formatCount(tokens)} tokens in `,
      bdi(precision), `. The validation loss is ${formatNumber(training.validation_loss)}.`)],
    ["Texts", element("ul", {}, ...data.map(({ name, size }) => element("li", {}, bdi(name), `, ${formatBytes(size)}`)))],
    ["Initial model", initial === null ? "None: training started from random weights." : bdi(initial)],
    ...(teacher === null ? [] : [/** @type {[string, Node]} */ (["Teacher", bdi(teacher)])]),
  ];
}

function evaluationTable(/** @type {Evaluation[]} */ evaluations) {
  const names = ["Task", "File", "Measure", "Value", "95 % interval"];
  const rows = evaluations.map(({ task, file, measure, value, low, high }) =>
    element("tr", {},
      element("th", { scope: "row" }, bdi(task)),
      element("td", {}, bdi(file)),
      element("td", {}, bdi(measure)),
      element("td", { className: "number" }, formatNumber(value)),
      element("td", { className: "number" }, low === null || high === null ? "none" : `${formatNumber(low)} to ${formatNumber(high)}`)));
  const table = element("table", { className: "numbers", id: "evaluations" },
    element("caption", {}, element("span", {}, "Evaluations")),
    element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows));
  return scroller("Evaluations of the model", table);
}
