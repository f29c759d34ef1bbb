// Named settings, stored in this browser.

import { announce } from "./announcer.js";
import { h } from "./element.js";
import { readyMade } from "./ready_made.js";

// Prefixes of the select's values: a saved preset may have the name of a ready-made one.
const SAVED = "saved:";
const READY_MADE = "ready:";
const STORE = "fastdeploy_lp.presets";

export class PresetPanel {
  /** `take()` returns the current settings, `give(settings)` applies others. */
  constructor(place, take, give) {
    this.take = take;
    this.give = give;
    this.declared = new Set();
    this.readyMade = [];
    this.choice = h("select", { id: "preset", onchange: () => this._settle() });
    this.others = h("p", { class: "hint", hidden: true });
    this.name = h("input", { id: "preset-name", type: "text", maxLength: 80, autocomplete: "off" });
    this.error = h("p", { class: "error", id: "preset-error", hidden: true });
    this.name.setAttribute("aria-describedby", this.error.id);
    this.load = h("button", { type: "button", onclick: () => this._load() }, "Load");
    this.remove = h("button", { type: "button", onclick: () => this._remove() }, "Delete");
    const save = h("button", { type: "button", onclick: () => this._save() }, "Save");
    place.append(
      h("label", { for: "preset", class: "field-label" }, "Preset"),
      h("div", { class: "row" }, this.choice, this.load, this.remove),
      this.others,
      h("label", { for: "preset-name", class: "field-label" }, "Save the settings as they are now, as"),
      h("div", { class: "row" }, this.name, save),
      this.error,
    );
    this._show();
  }

  /** Offers the presets whose processors are all declared. */
  show(infos) {
    this.declared = new Set(infos.map(({ name }) => name));
    this.readyMade = readyMade(infos);
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
    const all = this._all();
    const names = Object.keys(all).sort();
    const saved = names.filter((name) => this._missing(all[name]).length === 0);
    const groups = [
      group("Saved in this browser", saved, SAVED),
      group("Ready-made", this.readyMade.map(({ title }) => title), READY_MADE),
    ].filter(Boolean);
    this.choice.replaceChildren(...(groups.length ? groups : [h("option", { value: "" }, "none yet")]));
    if (chosen !== undefined) this.choice.value = SAVED + chosen;
    this.choice.disabled = groups.length === 0;
    this._showOthers(names.length - saved.length, names.flatMap((name) => this._missing(all[name])));
    this._settle();
  }

  /** Returns the names of a preset's active processors that the server does not declare. */
  _missing(settings) {
    return (settings.chain ?? []).filter(({ name, on }) => on && !this.declared.has(name)).map(({ name }) => name);
  }

  _showOthers(count, missing) {
    const needed = [...new Set(missing)].join(", ");
    this.others.textContent = `${count} saved here ${count === 1 ? "needs" : "need"} processors that this server does not declare: ${needed}`;
    this.others.hidden = count === 0;
  }

  _settle() {
    this.load.disabled = this.choice.value === "";
    this.remove.disabled = !this.choice.value.startsWith(SAVED);
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
    const name = this._name;
    const settings = this.choice.value.startsWith(SAVED) ? this._all()[name] : this._readyMadeSettings(name);
    if (!settings) return;
    this.give(settings);
    announce(`Preset ${name} is loaded`);
  }

  get _name() {
    return this.choice.value.replace(/^\w+:/, "");
  }

  /** Returns the current settings with a ready-made preset's processors and sampling fields. */
  _readyMadeSettings(title) {
    const found = this.readyMade.find((each) => each.title === title);
    if (!found) return undefined;
    const now = this.take();
    const fields = { ...now.sampling.fields, ...found.fields };
    return { ...now, chain: found.chain, sampling: { ...now.sampling, fields } };
  }

  _remove() {
    const name = this._name;
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

/** Returns a titled group of options, or null if there are none. */
function group(label, names, prefix) {
  return names.length ? h("optgroup", { label }, names.map((name) => h("option", { value: prefix + name }, name))) : null;
}
