// The place for modules of the client's own: a file is chosen, or dropped on the panel.

import { announce } from "./announcer.js";
import { h } from "./element.js";

const SUFFIX = ".wasm";
// The server's rule for the beginning of an upload's name.
const LONGEST_NAME = 32;

export class UploadZone {
  /** `uploaded(name)` is called when the server has stored a module under that name. */
  constructor(list, server, uploaded) {
    this.server = server;
    this.uploaded = uploaded;
    this.panel = list.closest(".panel");
    this.input = h("input", { id: "upload-file", type: "file", accept: `${SUFFIX},application/wasm`, "aria-describedby": "upload-error" });
    this.error = h("p", { class: "error", id: "upload-error", role: "alert", hidden: true });
    const label = h("label", { for: this.input.id, class: "field-label" }, "Your own processor: drop a WebAssembly module here, or choose one");
    this.element = h("div", { class: "upload", hidden: true }, label, this.input, this.error);
    this.input.addEventListener("change", () => this._take(this.input.files));
    this.panel.addEventListener("dragover", (event) => this._over(event));
    this.panel.addEventListener("dragleave", () => this._mark(false));
    this.panel.addEventListener("drop", (event) => this._dropped(event));
    list.after(this.element);
  }

  set shown(shown) {
    this.element.hidden = !shown;
  }

  _over(event) {
    if (this.element.hidden || !event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    this._mark(true);
  }

  _dropped(event) {
    this._mark(false);
    if (this.element.hidden || event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    this._take(event.dataTransfer.files);
  }

  _mark(dropping) {
    this.element.classList.toggle("dropping", dropping);
  }

  async _take(files) {
    this.error.hidden = true;
    try {
      // A list of dropped files is empty once its event has ended.
      for (const file of [...files]) {
        const { name } = await this.server.upload(labelOf(file.name), file);
        announce(`${name} is uploaded`);
        await this.uploaded(name);
      }
    } catch (error) {
      this.error.textContent = error.message;
      this.error.hidden = false;
    } finally {
      // So that the same file, built again, counts as a change.
      this.input.value = "";
    }
  }
}

/** Returns a file's name as the beginning of an upload's name: a letter, then letters, digits and underscores. */
function labelOf(fileName) {
  const stem = fileName.toLowerCase().endsWith(SUFFIX) ? fileName.slice(0, -SUFFIX.length) : fileName;
  const plain = stem.toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^[^a-z]+|_+$/g, "");
  return plain.slice(0, LONGEST_NAME) || "module";
}
