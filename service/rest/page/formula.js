const MATHML = "http://www.w3.org/1998/Math/MathML";
const PARTS = /\s+|\\[a-z]+|[A-Za-zαμσγβ]+|\d+(?:[.,]\d+)*|./gu;
const NAMES = { cdot: "⋅", odot: "⊙", infty: "∞", sum: "∑", dots: "…" };

/**
 * Return a formula as MathML, from a small part of LaTeX: names of letters, numbers, operators, {groups}, _ and ^ for one
 * group each, \frac{a}{b}, \sqrt{a}, \text{words}, \cdot, \odot, \sum, \infty and \dots.
 *
 * @param {string} source
 */
export function formula(source) {
  const parts = source.match(PARTS) ?? [];
  let place = 0;

  /** @returns {Element[]} the items up to a closing brace or the end */
  const list = () => {
    const items = [];
    while (place < parts.length && parts[place] !== "}") {
      if (/^\s+$/u.test(parts[place])) place += 1;
      else items.push(item());
    }
    return items;
  };
  const group = () => {
    if (parts[place] !== "{") return item();
    place += 1;
    const items = list();
    place += 1;
    return items.length === 1 ? items[0] : node("mrow", ...items);
  };
  const words = () => {
    const end = parts.indexOf("}", place);
    const text = parts.slice(place + 1, end).join("");
    place = end + 1;
    return node("mtext", text.replaceAll(" ", "\u00a0")); // MathML removes spaces at the ends
  };
  /** @returns {Element} */
  const item = () => {
    let base = atom();
    const marks = {};
    while (parts[place] === "_" || parts[place] === "^") {
      const mark = parts[place++];
      marks[mark] = group();
    }
    if (marks._ && marks["^"]) base = node("msubsup", base, marks._, marks["^"]);
    else if (marks._) base = node("msub", base, marks._);
    else if (marks["^"]) base = node("msup", base, marks["^"]);
    return base;
  };
  /** @returns {Element} */
  const atom = () => {
    const part = parts[place];
    if (part === "{") return group();
    place += 1;
    if (part === "\\frac") return node("mfrac", group(), group());
    if (part === "\\sqrt") return node("msqrt", group());
    if (part === "\\text") return words();
    if (part.startsWith("\\")) return node("mo", NAMES[part.slice(1)]);
    if (/^\d/u.test(part)) return node("mn", part);
    return node(/^\p{L}/u.test(part) ? "mi" : "mo", part === "-" ? "\u2212" : part);
  };
  return node("math", node("mrow", ...list()));
}

/** @returns {Element} */
function node(/** @type {string} */ tag, /** @type {(Element | string)[]} */ ...children) {
  const created = document.createElementNS(MATHML, tag);
  created.append(...children);
  if (tag === "math") created.setAttribute("display", "block");
  return created;
}
