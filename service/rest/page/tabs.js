import { rove } from "./roving.js";

/** Tabs by the ARIA pattern: the arrow keys move the focus and select. */
export class Tabs {
  /**
   * @param {HTMLElement} root the tab list, with buttons that control panels; elements with data-tab belong to a tab too
   * @param {(name: string) => void} onSelect called when the user selects a tab
   */
  constructor(root, onSelect) {
    this.tabs = [...root.querySelectorAll("button")];
    this.names = this.tabs.map((tab) => tab.dataset.name ?? "");
    this.selected = this.names[0];
    const select = (/** @type {string} */ name) => {
      if (name === this.selected) return;
      this.select(name);
      onSelect(name);
    };
    this.tabs.forEach((tab, place) => {
      tab.addEventListener("click", () => select(this.names[place]));
      tab.addEventListener("focus", () => select(this.names[place]));
    });
    rove(root, [this.tabs]);
  }

  select(/** @type {string} */ name) {
    this.selected = name;
    this.tabs.forEach((tab, place) => {
      const chosen = this.names[place] === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      const panel = document.getElementById(tab.getAttribute("aria-controls") ?? "");
      if (panel) panel.hidden = !chosen;
    });
    for (const title of document.querySelectorAll("[data-tab]")) title.toggleAttribute("hidden", title.getAttribute("data-tab") !== name);
    const heading = document.querySelector(`[data-tab="${name}"] h1`)?.textContent ?? "";
    document.title = `Attendant: ${heading.charAt(0).toLowerCase()}${heading.slice(1)}`;
  }
}
