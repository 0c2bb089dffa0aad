import { tinted } from "./attention.js";
import { paint } from "./canvas.js";
import { element, scroller } from "./element.js";
import { bdi, listed, which } from "./naming.js";
import { written } from "./number.js";
import { rove } from "./roving.js";
import { KINDS } from "./settings.js";

const TABLE_UNITS = 64;
const NARROW_UNITS = 14;

/** The whole map of a sentence: a table, or for a long one a picture with the table of the row that is looked at. */
export class Matrix {
  constructor(/** @type {HTMLElement} */ root) {
    this.root = root;
    this.readout = element("p", { className: "readout" });
    this.shown = {};
  }

  /**
   * @param {import("./attention.js").AttentionMap} map
   * @param {number} chosen the unit whose row stands out
   * @param {string} title
   */
  show(map, chosen, title) {
    // The pointer and the focus stay where they are when nothing that is shown has changed.
    if (this.shown.map === map && this.shown.chosen === chosen && this.shown.title === title) return;
    const held = this.root.contains(document.activeElement) ? document.activeElement?.getAttribute("data-place") : null;
    this.shown = { map, chosen, title };
    this.readout.textContent = "Point at a cell, or move to it with the arrow keys, to read it as a sentence.";
    if (map.units.length > TABLE_UNITS) this.root.replaceChildren(...this.#picture(map, Math.max(0, chosen), title));
    else this.root.replaceChildren(this.#table(map, chosen, title), this.readout);
    if (held) /** @type {HTMLElement | null} */ (this.root.querySelector(`[data-place="${held}"]`))?.focus();
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
      caption(...explained(map, title)),
      element("thead", {}, element("tr", {}, element("td", { className: "corner" }),
        ...heads.map((name) => element("th", { scope: "col" }, element("span", {}, name))))),
      element("tbody", {}, ...body),
    );
    rove(table, grid, [Math.max(0, map.rows.indexOf(chosen)), 0]);
    return scroller("The map, as a table", table);
  }

  #cell(map, row, column) {
    const value = map.matrix[row][column];
    const said = sentence(map, row, column);
    const look = () => { this.readout.textContent = said; };
    const cell = element(
      "td",
      { title: said, "aria-label": said, data: { place: `${row}:${column}` }, on: { focus: look, pointerenter: look } },
      written(value),
    );
    if (map.counts(row, column)) tinted(cell, value, map.largest);
    else cell.classList.add("itself");
    return cell;
  }

  #picture(map, chosen, title) {
    const canvas = element("canvas", { className: "heatmap", role: "img", "aria-label":
      `${title}: ${map.rows.length} rows by ${map.columns.length} columns; the table after it has the row in words` });
    paint(canvas, map.matrix, map.largest, (row, column) => map.counts(row, column));
    const table = element("div", {});
    const look = (/** @type {number} */ row) => table.replaceChildren(rowTable(map, row));
    const rowOf = (/** @type {PointerEvent} */ event) =>
      Math.max(0, Math.min(map.rows.length - 1, Math.floor((event.offsetY / canvas.clientHeight) * map.rows.length)));
    let row = Math.max(0, map.rows.indexOf(chosen));
    canvas.addEventListener("pointermove", (event) => look(rowOf(event)));
    canvas.addEventListener("pointerleave", () => look(row));
    canvas.addEventListener("click", (event) => look((row = rowOf(event))));
    look(row);
    const hint = element("p", { className: "readout" }, `${title}. ${map.units.length} units are too many for a table: `
      + "this is the picture, and below it is the row of the chosen word. Click a row of the picture for another.");
    return [hint, element("div", { className: "beside" }, canvas, table)];
  }
}

/** How to read a table of a map. */
function explained(map, title) {
  const signs = map.isSigned ? ", and orange is negative" : "";
  const empty = map.empty.map((row) => map.units[map.rows[row]].text);
  const gone = empty.length ? [" All that these rows took was left out: ", ...listed(empty), "."] : [];
  return [`${title}. Rows draw on columns; the deeper the tint, the more${signs}.`, ...gone];
}

/** What stands in a cell, as a sentence. */
function sentence(map, row, column) {
  const [verb, preposition] = KINDS[map.kind].says;
  const own = map.rows[row] === map.columns[column];
  const [from, to] = [map.nameOf(map.rows[row]), map.nameOf(map.columns[column])];
  return `${from} ${verb} ${written(map.matrix[row][column])} ${preposition} ${own ? "itself" : to}`;
}

/** A caption that is read in full: it stays in sight and wraps while a wide table scrolls below it. */
function caption(/** @type {(string | Node)[]} */ ...content) {
  return element("caption", {}, element("span", {}, ...content));
}

function extraColumns(map) {
  const dropped = map.excluded && !map.units.some((unit) => unit.special);
  return [
    ...(map.bias ? [{ name: "bias", values: map.bias }] : []),
    ...(dropped ? [{ name: "left out", values: map.excluded }] : []),
  ];
}

function extraCell(unit, name, value, place) {
  const said = `${unit}, ${name}: ${written(value)}`;
  return element("td", { className: "extra", title: said, "aria-label": said, data: { place } }, written(value));
}

/** One row of a map as a table of two columns, in the sentence's order. */
function rowTable(map, row) {
  const from = map.units[map.rows[row]].text;
  const one = which(map.units, map.rows[row]);
  const [verb, preposition] = KINDS[map.kind].says;
  const rows = map.columns.map((place, column) => {
    const cell = element("td", {}, written(map.matrix[row][column]));
    if (map.counts(row, column)) tinted(cell, map.matrix[row][column], map.largest);
    return element("tr", {}, element("th", { scope: "row" }, map.units[place].text), cell);
  });
  const extras = extraColumns(map).map(({ name, values }) =>
    element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, written(values[row]))));
  const table = element("table", { className: "matrix row" },
    caption("What ", bdi(from), `${one} ${verb} ${preposition} each word`),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "word"), element("th", { scope: "col" }, "value"))),
    element("tbody", {}, ...rows, ...extras));
  const box = scroller("The row, as a table", table);
  box.classList.add("tall");
  return box;
}
