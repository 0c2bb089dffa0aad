import { withModel } from "./api.js";
import { copyText } from "./clipboard.js";
import { button, element } from "./element.js";
import { curlOf, grpcurlOf, pythonOf } from "./snippets.js";

const FORMS = { curl: curlOf, Python: pythonOf, gRPC: grpcurlOf };
const NOTES = {
  curl: "",
  Python: "Uses the client package of this server: pip install ./client",
  gRPC: "Uses the default port of gRPC. ATTENDANT_GRPC_PORT changes it.",
};
let created = 0;

/** The request behind a view, as a program, with a button that copies it. */
export class RequestPanel {
  constructor() {
    this.form = "curl";
    /** @type {{operation: string, body: object} | null} */
    this.request = null;
    this.program = element("pre", { tabIndex: 0, "aria-label": "Request" });
    this.note = element("p", { className: "quiet" });
    this.status = element("span", { className: "quiet", role: "status" });
    this.reference = element("a", {}, "API reference");
    const group = `form-${created++}`;
    const radios = Object.keys(FORMS).map((form) => element("label", {}, element("input", {
      type: "radio", name: group, value: form, checked: form === this.form,
      on: { change: () => { this.form = form; this.#draw(); } },
    }), form));
    this.root = element("details", { className: "request", hidden: true, on: { toggle: () => this.#draw() } },
      element("summary", {}, "Show request"),
      element("fieldset", { className: "picker" }, element("legend", { className: "unseen" }, "Form of the request"),
        element("div", { className: "segments" }, ...radios)),
      this.program, this.note,
      element("p", { className: "actions" }, button("Copy", () => copyText(this.program, this.status)), this.reference, this.status));
  }

  show(/** @type {string} */ operation, /** @type {object} */ body) {
    this.request = { operation, body: withModel(body) };
    this.root.hidden = false;
    this.#draw();
  }

  #draw() {
    if (!this.request || !this.root.open) return;
    const { operation, body } = this.request;
    this.program.textContent = FORMS[this.form](operation, body);
    this.note.textContent = NOTES[this.form];
    this.reference.href = `docs#/native/${operation}`;
  }
}
