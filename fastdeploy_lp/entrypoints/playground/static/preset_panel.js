// Named settings, stored in this browser.

import { announce } from "./announcer.js";
import { h } from "./element.js";

const STORE = "fastdeploy_lp.presets";

export class PresetPanel {
  /** `take()` returns the current settings, `give(settings)` applies stored ones. */
  constructor(place, take, give) {
    this.take = take;
    this.give = give;
    this.choice = h("select", { id: "preset" });
    this.name = h("input", { id: "preset-name", type: "text", maxLength: 80, autocomplete: "off" });
    this.error = h("p", { class: "error", id: "preset-error", hidden: true });
    this.name.setAttribute("aria-describedby", this.error.id);
    this.load = h("button", { type: "button", onclick: () => this._load() }, "Load");
    this.remove = h("button", { type: "button", onclick: () => this._remove() }, "Delete");
    const save = h("button", { type: "button", onclick: () => this._save() }, "Save");
    place.append(
      h("label", { for: "preset", class: "field-label" }, "Saved in this browser"),
      h("div", { class: "row" }, this.choice, this.load, this.remove),
      h("label", { for: "preset-name", class: "field-label" }, "Save the settings as they are now, as"),
      h("div", { class: "row" }, this.name, save),
      this.error,
    );
    this._show();
  }

  _all() {
    try {
      const found = JSON.parse(localStorage.getItem(STORE) ?? "{}");
      return found && typeof found === "object" && !Array.isArray(found) ? found : {};
    } catch {
      return {};
    }
  }

  _show(chosen) {
    const names = Object.keys(this._all()).sort();
    this.choice.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    if (names.length === 0) this.choice.append(h("option", { value: "" }, "none yet"));
    for (const control of [this.choice, this.load, this.remove]) control.disabled = names.length === 0;
    if (chosen !== undefined) this.choice.value = chosen;
  }

  _store(presets) {
    try {
      localStorage.setItem(STORE, JSON.stringify(presets));
      this.error.hidden = true;
      return true;
    } catch (error) {
      return this._fail(`the browser does not keep it: ${error.message}`);
    }
  }

  _save() {
    const name = this.name.value.trim();
    if (name === "") {
      this._fail("give it a name");
      this.name.focus();
      return;
    }
    if (!this._store({ ...this._all(), [name]: this.take() })) return;
    this._show(name);
    this.name.value = "";
    announce(`Preset ${name} is saved`);
  }

  _load() {
    const settings = this._all()[this.choice.value];
    if (!settings) return;
    this.give(settings);
    announce(`Preset ${this.choice.value} is loaded`);
  }

  _remove() {
    const name = this.choice.value;
    const { [name]: _, ...rest } = this._all();
    if (!this._store(rest)) return;
    this._show();
    announce(`Preset ${name} is deleted`);
  }

  _fail(message) {
    this.error.textContent = message;
    this.error.hidden = false;
    return false;
  }
}
