import { button, element, svg } from "./element.js";
import { colors } from "./figure.js";

const SCALE = 2; // pixels of a PNG per pixel of its figure
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "paint-order"];
const RELEASE_MS = 10_000;
const LARGEST_SIDE = 8192; // pixels of a canvas that every browser supports
const NOT_XML = /[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu; // text copied from a PDF may contain them
const BYTE_ORDER_MARK = "\ufeff"; // without it, Excel does not read UTF-8

/**
 * @typedef {() => {name: string, figure: SVGElement | null, rows: (string | number)[][]} | null} Source  the current
 *   figure, the numbers in it, and a name for the files
 */

/** Create buttons that save a figure as PNG and SVG, and its numbers as CSV. */
export function downloads(/** @type {string} */ label, /** @type {Source} */ source) {
  const save = (/** @type {(current: NonNullable<ReturnType<Source>>) => void} */ write) => () => {
    const current = source();
    if (current) write(current);
  };
  const isFigure = (/** @type {(name: string, figure: SVGElement) => void} */ write) =>
    save(({ name, figure }) => figure && write(name, standalone(figure)));
  return element("p", { className: "actions downloads", role: "group", "aria-label": `Save ${label}` },
    element("span", { className: "quiet", "aria-hidden": "true" }, `Save ${label}`),
    button("PNG", isFigure(savePng), { className: "small" }),
    button("SVG", isFigure((name, figure) => saveFile(`${name}.svg`, new Blob([serialize(figure)], { type: "image/svg+xml" }))),
      { className: "small" }),
    button("CSV", save(({ name, rows }) => saveFile(`${name}.csv`, new Blob([BYTE_ORDER_MARK, csv(rows)], { type: "text/csv" }))),
      { className: "small" }));
}

/** Return rows of values as CSV (RFC 4180), with the numbers as the server sent them. */
export function csv(/** @type {(string | number)[][]} */ rows) {
  const field = (/** @type {string | number} */ value) =>
    /[",\r\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  return rows.map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

/** Return a copy of a figure that does not need the style sheet. */
function standalone(/** @type {SVGElement} */ figure) {
  const copy = /** @type {SVGElement} */ (figure.cloneNode(true));
  const [width, height] = (figure.getAttribute("viewBox") ?? "").split(" ").slice(2).map(Number);
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  if (figure.isConnected) {
    const copies = [...copy.querySelectorAll("*")];
    [...figure.querySelectorAll("*")].forEach((node, index) => {
      const style = getComputedStyle(node);
      for (const name of STYLES) copies[index].setAttribute(name, style.getPropertyValue(name));
    });
    copy.prepend(svg("rect", { width, height, fill: colors().ground }));
  }
  return copy;
}

function serialize(/** @type {SVGElement} */ figure) {
  return new XMLSerializer().serializeToString(figure).replaceAll(NOT_XML, "\ufffd");
}

/** Draw a figure on a canvas. The content security policy allows images from data URLs. */
function savePng(/** @type {string} */ name, /** @type {SVGElement} */ figure) {
  const image = new Image();
  image.addEventListener("load", () => {
    const scale = Math.min(SCALE, LARGEST_SIDE / Math.max(image.width, image.height));
    const canvas = element("canvas", { width: image.width * scale, height: image.height * scale });
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => blob && saveFile(`${name}.png`, blob), "image/png");
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(serialize(figure))}`;
}

function saveFile(/** @type {string} */ name, /** @type {Blob} */ blob) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), RELEASE_MS);
}
