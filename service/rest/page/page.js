import { showModel } from "./about.js";
import { ApiError, call, INVALID, selectModel } from "./api.js";
import { ContextView } from "./context.js";
import { element, find } from "./element.js";
import { decode, encode, LinkError } from "./fragment.js";
import { Notices } from "./notices.js";
import { Share } from "./share.js";
import { SimilarityView } from "./similarity.js";
import { Tabs } from "./tabs.js";
import { Walkthrough } from "./walkthrough.js";

const OPENING = "v=1"; // the fragment of the opening state

/** The page: three tabs, the notices, and the link to the current state. */
class Page {
  constructor() {
    /** @type {any[]} the served models, the default model first */
    this.models = [];
    /** @type {string | null} the name of the selected model, or null for the default model */
    this.model = null;
    this.notices = new Notices(find("#notices"), () => this.#retry());
    this.share = new Share(find("#sharing"), () => encode(this.#state()));
    const onChange = () => {
      this.notices.set("link", null);
      this.share.update();
    };
    this.context = new ContextView(this.notices, onChange, (place) => this.#follow(place));
    this.similarity = new SimilarityView(find("#similarity"), this.notices, onChange);
    this.walkthrough = new Walkthrough(find("#attention"), this.notices, onChange);
    this.tabs = new Tabs(find("#tabs"), () => this.#selectTab());
    // Not location.hash: the page may have written its state to the URL after the change.
    addEventListener("hashchange", ({ newURL }) => this.#restore(new URL(newURL).hash));
  }

  start() {
    this.#loadModels();
    if (location.hash.length > 1) this.#restore(location.hash);
    else this.context.start();
  }

  #selectTab() {
    this.similarity.setActive(this.tabs.selected === "similarity");
    this.walkthrough.setActive(this.tabs.selected === "attention");
    this.context.player.stop();
    this.share.update();
  }

  /** Open the tab that follows a token, at its place. */
  #follow(/** @type {Partial<import("./walkthrough.js").WalkState>} */ place) {
    this.walkthrough.open(place);
    this.tabs.select("attention");
    this.#selectTab();
    find("#tabs").scrollIntoView();
    find("#tab-attention").focus();
  }

  async #loadModels() {
    const setBusy = (/** @type {boolean} */ busy) => find("#sentences").setAttribute("aria-busy", String(busy));
    setBusy(true);
    try {
      this.models = (await call("v1/models")).data;
      setBusy(false);
      this.notices.set("model", null);
      this.#useModel(this.model);
    } catch (error) {
      setBusy(false);
      this.notices.set("model", /** @type {any} */ (error));
    }
  }

  /** Show a model of the server; null is the default model. */
  #useModel(/** @type {string | null} */ name) {
    const model = this.models.find((other) => other.name === name || other.aliases.includes(name)) ?? this.models[0];
    const isMissing = name !== null && model.name !== name && !model.aliases.includes(name);
    if (isMissing) this.notices.set("link", new ApiError(INVALID, "The link names a model that is not served. The page shows the default model."));
    this.model = model === this.models[0] ? null : model.name;
    selectModel(this.model, model.name);
    this.#drawModel(model);
    showModel(find("#about"), model);
    this.context.setModel(model);
    this.similarity.setModel(model);
    this.walkthrough.setModel(model);
  }

  /** Show the name and sizes of the model, and a control if several models are served. */
  #drawModel(/** @type {any} */ { name, num_hidden_layers: layers, num_attention_heads: heads }) {
    const onChange = () => {
      this.notices.set("link", null);
      this.#useModel(picker.value);
      this.share.update();
    };
    const picker = element("select", { id: "model-name", "aria-label": "Model", on: { change: onChange } },
      ...this.models.map((model) => element("option", { value: model.name, selected: model.name === name }, model.name)));
    const hadFocus = document.activeElement?.id === picker.id;
    find("#model").replaceChildren(...(this.models.length > 1 ? [picker, " "] : [`${name}, `]), `${layers} layers, ${heads} heads`);
    if (hadFocus) picker.focus();
  }

  /** Send the failed requests again. */
  #retry() {
    if (!this.context.model) this.#loadModels();
    this.context.start();
    this.similarity.start();
    this.walkthrough.start();
  }

  /** @returns {import("./fragment.js").State} */
  #state() {
    return { tab: this.tabs.selected, model: this.model, context: this.context.state, similarity: this.similarity.state, walk: this.walkthrough.state };
  }

  /** Show the state of the link, or the opening state and a notice if the link is not valid. */
  #restore(/** @type {string} */ hash) {
    try {
      const { tab, model, context, similarity, walk } = decode(hash.slice(1) || OPENING);
      this.notices.set("link", null);
      this.model = model;
      selectModel(model);
      if (this.models.length) this.#useModel(model);
      this.context.restore(context);
      this.similarity.restore(similarity);
      this.walkthrough.restore(walk);
      this.tabs.select(tab);
      this.#selectTab();
    } catch (error) {
      if (!(error instanceof LinkError)) throw error;
      this.notices.set("link", new ApiError(INVALID, `The link is not valid: ${error.message}. The page ignores it.`));
      this.context.start();
    }
  }
}

new Page().start();
