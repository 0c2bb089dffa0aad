import { button, element } from "./element.js";

const STEP_MS = 900;
const BUSY_MS = 60; // between two looks at a pending response

/**
 * The layer slider, and a button that moves it from layer 0 to the last layer. A step waits for the response of the step
 * before. If the user prefers reduced motion, the button moves by one layer only.
 */
export class LayerPlayer {
  /**
   * @param {HTMLElement} root
   * @param {(layer: number) => void} onLayer
   */
  constructor(root, onLayer) {
    this.onLayer = onLayer;
    this.timer = 0;
    this.layer = 0;
    this.count = 0;
    this.busy = false;
    this.reduced = matchMedia("(prefers-reduced-motion: reduce)");
    this.button = button("", () => this.#toggle(), { className: "play" });
    this.slider = element("input", {
      id: "layer", type: "range", min: "0", step: "1",
      on: { input: () => { this.stop(); this.onLayer(Number(this.slider.value)); } },
    });
    this.output = element("output", { htmlFor: "layer" });
    this.root = root;
    root.append(this.button, element("label", { htmlFor: "layer" }, "Layer"), this.slider, this.output);
    this.reduced.addEventListener("change", () => { this.stop(); });
    this.#label();
  }

  /**
   * @param {number} layer
   * @param {number} count number of the last layer
   * @param {boolean} busy whether a response for this layer is pending
   */
  show(layer, count, busy) {
    Object.assign(this, { layer, count, busy });
    this.slider.max = String(count);
    this.slider.value = String(layer);
    const text = `${layer} of ${count}`;
    this.slider.setAttribute("aria-valuetext", `${text}, ${meaning(layer, count)}`);
    this.output.textContent = `${text}: ${meaning(layer, count)}`;
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.#label();
  }

  #toggle() {
    if (this.timer) return this.stop();
    const next = this.layer >= this.count ? 0 : this.layer + 1;
    this.onLayer(next);
    if (this.reduced.matches) return;
    this.#schedule(STEP_MS);
    this.#label();
  }

  #schedule(/** @type {number} */ delay) {
    this.timer = setTimeout(() => {
      if (this.busy) return this.#schedule(BUSY_MS);
      if (this.layer >= this.count) return this.stop();
      this.onLayer(this.layer + 1);
      this.#schedule(STEP_MS);
    }, delay);
  }

  #label() {
    this.button.textContent = this.timer ? "Pause" : this.reduced.matches ? "Next layer" : "Play";
    this.button.classList.toggle("playing", this.timer !== 0);
  }
}

function meaning(/** @type {number} */ layer, /** @type {number} */ count) {
  if (layer === 0) return "before the first layer";
  return layer === count ? "after the last layer" : `after layer ${layer}`;
}
