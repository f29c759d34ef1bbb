// One declared processor: its use, its shadow mode and the form of its arguments.

import { h, newId, prose, shortName } from "./element.js";
import { JsonField } from "./scalar_fields.js";
import { SchemaForm } from "./schema_form.js";
import { termInControl } from "./term.js";

export class ProcessorCard {
  /**
   * `info`: the server's description of the processor. `used(card)` is called when the user turns it on or off,
   * `removed(card)` when the user deletes it, which is possible for an upload.
   */
  constructor(info, server, { used, removed }) {
    this.used = used;
    this.removed = removed;
    this.searched = [info.name, info.description, ...Object.keys(info.parameters?.properties ?? {})].join(" ").toLowerCase();
    this.name = info.name;
    this.usual = info.order;
    this.alwaysInShadow = info.always_in_shadow;
    this.mandatory = info.mandatory;
    this.form = info.parameters ? new SchemaForm(info.parameters, server) : new OpenForm();
    this.error = h("p", { class: "error", hidden: true });
    this._build(info);
    // Editing an argument turns the processor on, so that its effect shows.
    this.body.addEventListener("input", () => this._edited());
    this.body.addEventListener("change", () => this._edited());
  }

  /** The processor's name in short, and how it takes part. */
  get label() {
    return this.shadow.checked ? `${shortName(this.name)} in shadow` : shortName(this.name);
  }

  /** True if the name, the description or the arguments contain all words, which are in lower case. */
  matches(words) {
    return words.every((word) => this.searched.includes(word));
  }

  get on() {
    return this.toggle.checked;
  }

  set on(on) {
    this.toggle.checked = on || this.mandatory;
    this.element.classList.toggle("on", this.toggle.checked);
  }

  /** True if a request must name the processor: a mandatory one without arguments runs anyway. */
  get named() {
    return this.on && !(this.mandatory && Object.keys(this.form.value).length === 0);
  }

  get settings() {
    const shadow = this.shadow.checked && !this.alwaysInShadow;
    return { name: this.name, on: this.on, shadow, params: this.form.value };
  }

  set settings({ on, shadow, params }) {
    this.on = Boolean(on);
    this.shadow.checked = this.alwaysInShadow || (Boolean(shadow) && !this.mandatory);
    this.form.value = params ?? {};
    this.clearErrors();
  }

  /** The processor's entry in a request. */
  get entry() {
    const entry = { name: this.name, params: this.form.value };
    // A request does not ask for a shadow mode that the operator has set.
    if (this.shadow.checked && !this.alwaysInShadow) entry.shadow = true;
    return entry;
  }

  open() {
    this._unfold(true);
  }

  check() {
    const fine = this.form.check();
    if (!fine) this.open();
    return fine;
  }

  /** Shows the server's error at `path` in the arguments. */
  showError(path, message) {
    this.open();
    if (path.length > 0 && this.form.showError(path, message)) {
      this.element.querySelector('.form [aria-invalid="true"]')?.focus();
      return;
    }
    this.error.textContent = message;
    this.error.hidden = false;
  }

  clearErrors() {
    this.error.hidden = true;
    this.form.clearErrors();
  }

  _edited() {
    this.error.hidden = true;
    if (!this.on) this.use(true);
  }

  use(on) {
    this.on = on;
    this.used(this);
  }

  _build(info) {
    const id = newId("processor");
    this.toggle = h("input", { type: "checkbox", role: "switch", id, class: "switch", "aria-label": `Use ${info.name}` });
    this.toggle.addEventListener("change", () => {
      if (this.toggle.checked) this.open();
      this.use(this.toggle.checked);
    });
    this.shadow = h("input", { type: "checkbox", id: `${id}-shadow` });
    this.handle = h(
      "button",
      { type: "button", class: "handle", "aria-label": `Move ${info.name}`, "aria-describedby": "reorder-help" },
      "⠿",
    );
    this.up = moveButton(info.name, "up", "↑");
    this.down = moveButton(info.name, "down", "↓");
    this.place = h("span", { class: "place" });
    const quarantined = info.state === "ok" ? null : h("span", { class: "badge warning" }, termInControl("quarantined", info.state));
    const mandatory = this.mandatory ? h("span", { class: "badge" }, termInControl("mandatory")) : null;
    const uploaded = info.upload ? h("span", { class: "badge" }, "yours") : null;
    const inShadow = this.alwaysInShadow ? h("span", { class: "badge" }, termInControl("in shadow")) : null;
    this.disclosure = h(
      "button",
      { type: "button", class: "disclosure", "aria-expanded": "false", "aria-controls": `${id}-body` },
      ...shortened(info.name),
      uploaded,
      mandatory,
      inShadow,
      quarantined,
    );
    this.disclosure.addEventListener("click", () => this._unfold(this.folded.hidden));
    this.body = h(
      "div",
      { class: "card-body" },
      info.description ? h("p", { class: "hint" }, prose(info.description)) : null,
      this.form.element,
    );
    const shadow = h(
      "div",
      { class: "check" },
      this.shadow,
      h("label", { for: this.shadow.id }, "Shadow: count what it would change"),
    );
    this.shadow.addEventListener("change", () => this._edited());
    const why = this.alwaysInShadow ? this._settleShadow(`${id}-why`) : this.mandatory ? this._settleUse(`${id}-why`) : null;
    this.moves = h("div", { class: "row moves" }, h("span", { class: "small" }, "Order"), this.up, this.down);
    this.folded = h("div", { class: "folded", id: `${id}-body`, hidden: true }, this.error, this.body, info.upload ? this._deletion() : shadow, why, this.moves);
    const head = [this.handle, this.place, this.disclosure, this.toggle];
    this.element = h("li", { class: "processor", dataset: { name: info.name } }, head, this.folded);
    this.on = false;
  }

  /** Returns the button that deletes an upload, which cannot run in shadow. */
  _deletion() {
    const button = h("button", { type: "button" }, "Delete this upload");
    button.addEventListener("click", () => this.removed(this));
    return h("div", { class: "row" }, button);
  }

  /** Disables the shadow toggle, which the operator set; returns the reason to show below it. */
  _settleShadow(id) {
    this.shadow.checked = true;
    this.shadow.disabled = true;
    this.shadow.setAttribute("aria-describedby", id);
    const reason = "This server was started with --shadow for it: it only counts, and never changes an answer.";
    return h("p", { class: "hint", id }, reason);
  }

  /** Disables the controls of use, position and shadow, which the operator set; returns the reason to show. */
  _settleUse(id) {
    for (const control of [this.toggle, this.shadow, this.handle]) {
      control.disabled = true;
      control.setAttribute("aria-describedby", id);
    }
    return h("p", { class: "hint", id }, "This server was started with --mandatory for it: it runs for every request.");
  }

  _unfold(open) {
    this.folded.hidden = !open;
    this.disclosure.setAttribute("aria-expanded", String(open));
  }
}

/** The form for a processor without a known schema of its arguments. */
class OpenForm {
  constructor() {
    const hint = "This processor does not say what its arguments are: write them as a JSON object.";
    this.field = new JsonField({ label: "Arguments", hint, schema: { type: "object" } });
    this.element = h("div", { class: "form" }, this.field.element);
  }

  get value() {
    return this.field.value ?? {};
  }

  set value(params) {
    this.field.value = Object.keys(params ?? {}).length ? params : undefined;
  }

  check() {
    return this.field.check();
  }

  showError(path, message) {
    return this.field.showError(path, `${path.join(".")}: ${message}`);
  }

  clearErrors() {
    this.field.clearErrors();
  }

  get tokenMap() {
    return undefined;
  }
}

/** Returns nodes for the distinctive part of a name and for the suffix that most names share. */
function shortened(name) {
  const short = shortName(name);
  return [h("b", {}, short), h("wbr"), h("span", { class: "small" }, name.slice(short.length))];
}

function moveButton(name, direction, sign) {
  const label = `Move ${name} ${direction}`;
  return h("button", { type: "button", class: "small-button", "aria-label": label }, sign);
}
