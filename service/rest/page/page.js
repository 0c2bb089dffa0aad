import { showModel } from "./about.js";
import { ApiError, call } from "./api.js";
import { ContextView } from "./context.js";
import { decode, encode, LinkError } from "./fragment.js";
import { Notices } from "./notices.js";
import { Share } from "./share.js";
import { SimilarityView } from "./similarity.js";
import { Tabs } from "./tabs.js";

const INVALID = 422; // a retry does not help
const OPENING = "v=1"; // the fragment of the opening state

/** The page: two tabs, the notices, and the link to the current state. */
class Page {
  constructor() {
    this.notices = new Notices(find("#notices"), () => this.#retry());
    this.share = new Share(find("#sharing"), () => encode(this.#state()));
    const onChange = () => {
      this.notices.set("link", null);
      this.share.update();
    };
    this.context = new ContextView(this.notices, onChange);
    this.similarity = new SimilarityView(find("#similarity"), this.notices, onChange);
    this.tabs = new Tabs(find("#tabs"), () => this.#selectTab());
    // Not location.hash: the page may have written its state to the URL after the change.
    addEventListener("hashchange", ({ newURL }) => this.#restore(new URL(newURL).hash));
  }

  start() {
    this.#loadModel();
    if (location.hash.length > 1) this.#restore(location.hash);
    else this.context.start();
  }

  #selectTab() {
    this.similarity.setActive(this.tabs.selected === "similarity");
    this.context.player.stop();
    this.share.update();
  }

  async #loadModel() {
    try {
      const model = await call("v1/model");
      this.notices.set("model", null);
      const { name, num_hidden_layers: layers, num_attention_heads: heads } = model;
      find("#model").textContent = `${name}, ${layers} layers, ${heads} heads`;
      showModel(find("#about"), model);
      this.context.setModel(model);
      this.similarity.setModel(model);
    } catch (error) {
      this.notices.set("model", /** @type {any} */ (error));
    }
  }

  /** Send the failed requests again. */
  #retry() {
    if (!this.context.model) this.#loadModel();
    this.context.start();
    this.similarity.start();
  }

  /** @returns {import("./fragment.js").State} */
  #state() {
    return { tab: this.tabs.selected, context: this.context.state, similarity: this.similarity.state };
  }

  /** Show the state of the link, or the opening state and a notice if the link is not valid. */
  #restore(/** @type {string} */ hash) {
    try {
      const { tab, context, similarity } = decode(hash.slice(1) || OPENING);
      this.notices.set("link", null);
      this.context.restore(context);
      this.similarity.restore(similarity);
      this.tabs.select(tab);
      this.#selectTab();
    } catch (error) {
      if (!(error instanceof LinkError)) throw error;
      this.notices.set("link", new ApiError(INVALID, `The link is not valid: ${error.message}. The page ignores it.`));
      this.context.start();
    }
  }
}

function find(/** @type {string} */ selector) {
  return /** @type {HTMLElement} */ (document.querySelector(selector));
}

new Page().start();
