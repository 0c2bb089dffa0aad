import { applyTint } from "./attention.js";
import { paint } from "./canvas.js";
import { button, element, scroller } from "./element.js";
import { bdi, joinWords, ordinal } from "./naming.js";
import { formatNumber } from "./number.js";
import { rove } from "./roving.js";
import { KINDS, RELATIONS } from "./settings.js";

const TABLE_UNITS = 64;
const NARROW_UNITS = 12;

/** The map of a sentence as a table, or for a long sentence as an image with a table of one row. */
export class Matrix {
  /**
   * @param {HTMLElement} root
   * @param {(row: number) => void} onCell called when the user selects a cell
   */
  constructor(root, onCell) {
    this.root = root;
    this.onCell = onCell;
    this.readout = element("p", { className: "readout" });
    this.shown = {};
  }

  /**
   * @param {import("./attention.js").AttentionMap} map
   * @param {number} chosen the unit whose row is highlighted
   * @param {string} title
   */
  show(map, chosen, title) {
    // Do not rebuild an unchanged table: this would lose the pointer and the focus.
    const isShown = this.root.querySelector(".matrix") !== null;
    if (isShown && this.shown.map === map && this.shown.chosen === chosen && this.shown.title === title) return;
    const focusedCell = this.root.contains(document.activeElement) ? document.activeElement?.getAttribute("data-place") : null;
    this.shown = { map, chosen, title };
    this.readout.textContent = "Point at a cell, tap it, or move to it with the arrow keys to read its value. Click it, or press Enter, to follow it step by step.";
    if (map.isInput) this.root.replaceChildren(element("p", { className: "quiet" }, "Layer 0 has no map: no words are mixed yet."));
    else if (map.units.length > TABLE_UNITS) this.root.replaceChildren(...this.#picture(map, Math.max(0, chosen), title));
    else this.root.replaceChildren(this.#table(map, chosen, title), this.readout);
    if (focusedCell) /** @type {HTMLElement | null} */ (this.root.querySelector(`[data-place="${focusedCell}"]`))?.focus();
  }

  #table(map, chosen, title) {
    const extras = extraColumns(map);
    /** @type {HTMLElement[][]} */
    const grid = [];
    const body = map.rows.map((place, row) => {
      const cells = map.columns.map((_, column) => this.#cell(map, row, column));
      const more = extras.map(({ name, values }, index) => extraCell(map.nameOf(place), name, values[row],
        `${row}:${map.columns.length + index}`));
      grid.push([...cells, ...more]);
      return element("tr", { className: place === chosen ? "chosen" : "" },
        element("th", { scope: "row" }, map.units[place].text), ...cells, ...more);
    });
    const heads = [...map.columns.map((place) => map.units[place].text), ...extras.map(({ name }) => name)];
    const table = element(
      "table",
      { className: `matrix${map.columns.length > NARROW_UNITS ? " narrow" : ""}`, role: "grid", "aria-readonly": "true" },
      caption(...captionContent(map, title)),
      element("thead", {}, element("tr", {}, element("td", { className: "corner" }),
        ...heads.map((name, place) =>
          element("th", { scope: "col", className: place < map.columns.length ? "" : "extra" }, element("span", {}, name))))),
      element("tbody", {}, ...body),
    );
    rove(table, grid, [Math.max(0, map.rows.indexOf(chosen)), 0]);
    return scroller("Map as a table", table);
  }

  #cell(map, row, column) {
    const value = map.matrix[row][column];
    const description = describeCell(map, row, column);
    const inspect = () => this.readout.replaceChildren(`${description}. `, button("Follow it step by step", () => this.onCell(row), { className: "plain" }));
    const cell = element(
      "td",
      {
        title: description, "aria-label": description, data: { place: `${row}:${column}` },
        on: {
          focus: inspect, pointerenter: inspect,
          // A tap reads the value; the button after it opens the walkthrough.
          click: (/** @type {PointerEvent} */ { pointerType }) => { if (pointerType === "mouse") this.onCell(row); },
          keydown: (/** @type {KeyboardEvent} */ { key }) => { if (key === "Enter") this.onCell(row); },
        },
      },
      formatNumber(value),
    );
    if (map.isIncluded(row, column)) applyTint(cell, value, map.largest);
    else cell.classList.add("itself");
    return cell;
  }

  #picture(map, chosen, title) {
    const canvas = element("canvas", { className: "heatmap", role: "img", "aria-label":
      `${title}: ${map.rows.length} rows and ${map.columns.length} columns. The table after the image has one row.` });
    paint(canvas, map.matrix, map.largest, (row, column) => map.isIncluded(row, column));
    const table = element("div", {});
    const inspect = (/** @type {number} */ row) => table.replaceChildren(rowTable(map, row),
      element("p", { className: "actions" }, button("Follow this row step by step", () => this.onCell(row), { className: "plain" })));
    const rowOf = (/** @type {PointerEvent} */ event) =>
      Math.max(0, Math.min(map.rows.length - 1, Math.floor((event.offsetY / canvas.clientHeight) * map.rows.length)));
    let row = Math.max(0, map.rows.indexOf(chosen));
    canvas.addEventListener("pointermove", (event) => inspect(rowOf(event)));
    canvas.addEventListener("pointerleave", () => inspect(row));
    canvas.addEventListener("click", (event) => inspect((row = rowOf(event))));
    inspect(row);
    const hint = element("p", { className: "readout" }, `${title}. The map is too large for a table (${map.units.length} units). `
      + "The table shows the row of the selected word. Select a row of the image to show that row, then follow it step by step.");
    return [hint, element("div", { className: "beside" }, canvas, table)];
  }
}

/**
 * Return a map as rows of text for a CSV file, with its extra columns.
 *
 * @param {import("./attention.js").AttentionMap} map
 * @returns {(string | number)[][]}
 */
export function mapRows(map) {
  const extras = extraColumns(map);
  const names = [...map.columns.map((place) => map.units[place].text), ...extras.map(({ name }) => name)];
  return [["", ...names], ...map.rows.map((place, row) =>
    [map.units[place].text, ...map.matrix[row], ...extras.map(({ values }) => values[row])])];
}

/** Return the caption of a map. */
function captionContent(map, title) {
  const signs = map.isSigned ? " Orange cells are negative." : "";
  const empty = map.empty.map((row) => map.units[map.rows[row]].text);
  const emptyRows = empty.length ? [" Rows without remaining values: ", ...joinWords(empty), "."] : [];
  return [`${title}. ${relation(map).row} Stronger colors mean larger values.${signs}`, ...emptyRows];
}

/** Describe the value of a cell: "check contributes 0.271 to bank". */
function describeCell(map, row, column) {
  const [query, key] = [map.nameOf(map.rows[row]), map.nameOf(map.columns[column])];
  return relation(map).cell(query, key, formatNumber(map.matrix[row][column]));
}

function relation(map) {
  return RELATIONS[KINDS[map.kind].relation];
}

/** Create a caption that wraps and stays visible while a wide table scrolls. */
function caption(/** @type {(string | Node)[]} */ ...content) {
  return element("caption", {}, element("span", {}, ...content));
}

function extraColumns(map) {
  const dropped = map.excluded && !map.units.some((unit) => unit.special);
  return [
    ...(map.bias ? [{ name: "bias", values: map.bias }] : []),
    ...(dropped ? [{ name: "excluded", values: map.excluded }] : []),
  ];
}

function extraCell(unit, name, value, place) {
  const description = `${unit}, ${name}: ${formatNumber(value)}`;
  return element("td", { className: "extra", title: description, "aria-label": description, data: { place } }, formatNumber(value));
}

/** Create a table of one row of a map, in the order of the sentence. */
function rowTable(map, row) {
  const query = map.units[map.rows[row]].text;
  const rows = map.columns.map((place, column) => {
    const cell = element("td", {}, formatNumber(map.matrix[row][column]));
    if (map.isIncluded(row, column)) applyTint(cell, map.matrix[row][column], map.largest);
    return element("tr", {}, element("th", { scope: "row" }, map.units[place].text), cell);
  });
  const extras = extraColumns(map).map(({ name, values }) =>
    element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, formatNumber(values[row]))));
  const table = element("table", { className: "matrix row" },
    caption(`${relation(map).title} `, bdi(query), ordinal(map.units, map.rows[row])),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "word"), element("th", { scope: "col" }, "value"))),
    element("tbody", {}, ...rows, ...extras));
  const box = scroller("Row as a table", table);
  box.classList.add("tall");
  return box;
}
