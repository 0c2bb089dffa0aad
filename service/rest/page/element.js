const SVG = "http://www.w3.org/2000/svg";

/**
 * Create an element with properties. Names with a dash and `role` become attributes, `on` has event listeners, and
 * `data` has data attributes. Strings become text nodes, never markup.
 *
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name.includes("-") || name === "role" || name === "for") node.setAttribute(name, String(value));
    else /** @type {any} */ (node)[name] = value;
  }
  for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

/** Return the element of the page for a selector. */
export function find(/** @type {string} */ selector) {
  return /** @type {HTMLElement} */ (document.querySelector(selector));
}

/**
 * Create an SVG element with attributes.
 *
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 * @param {...(Node | string)} children
 */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** Create a button. */
export function button(/** @type {string} */ label, /** @type {() => void} */ onClick, properties = {}) {
  return element("button", { type: "button", on: { click: onClick }, ...properties }, label);
}

/**
 * Create a native select with a label.
 *
 * @param {string} label
 * @param {{value: string, text: string, disabled?: boolean, more?: boolean}[]} options those with `more` are in a group below
 *   the others
 * @param {string} value
 * @param {(value: string) => void} onChange
 * @param {{id: string, disabled?: boolean, describedBy?: string}} more
 */
export function select(label, options, value, onChange, { id, disabled = false, describedBy }) {
  const create = ({ value: name, text, disabled: isDisabled = false }) =>
    element("option", { value: name, text, disabled: isDisabled, selected: name === value });
  const rest = options.filter(({ more }) => more);
  const control = element(
    "select",
    { id, disabled, "aria-describedby": describedBy, on: { change: () => onChange(control.value) } },
    ...options.filter(({ more }) => !more).map(create), rest.length && element("optgroup", { label: "More" }, ...rest.map(create)),
  );
  return element("div", { className: "picker" }, element("label", { htmlFor: id }, label), control);
}

/**
 * Create a box that scrolls horizontally and is focusable, so that the keyboard can scroll it. Its edges fade where
 * content is hidden.
 *
 * @param {string} label
 * @param {...Node} children
 */
export function scroller(label, ...children) {
  const box = element("div", { className: "scroller", role: "region", tabIndex: 0, "aria-label": label }, ...children);
  const update = () => {
    box.dataset.before = String(box.scrollLeft > 1);
    box.dataset.after = String(box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener("scroll", update, { passive: true });
  const observer = new ResizeObserver(update);
  for (const node of [box, ...children]) if (node instanceof Element) observer.observe(node);
  return box;
}
