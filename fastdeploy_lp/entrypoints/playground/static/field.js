// One argument of a form: a label, a control, a hint, and the place where an error about it stands.

import { h, newId } from "./element.js";

/**
 * What all fields share. A subclass builds its controls, and gives and takes `value`; undefined is "not given".
 * `spec`: `label`, `hint`, `required`, `schema`, `root` (of the schema's definitions) and `server`.
 */
export class Field {
  constructor(spec) {
    this.spec = spec;
    this.id = newId("field");
    this.error = h("p", { class: "error", id: `${this.id}-error`, hidden: true });
    this.hint = spec.hint ? h("p", { class: "hint", id: `${this.id}-hint` }, spec.hint) : null;
  }

  /** Around one control. */
  wrapControl(control) {
    this.control = control;
    control.id = this.id;
    this._describe(control);
    const label = h("label", { for: this.id, class: "field-label" }, this.spec.label, this._mark());
    this.element = h("div", { class: "field" }, label, control, this.hint, this.error);
  }

  /** Around several controls. */
  wrapGroup(...content) {
    const legend = h("legend", { class: "field-label" }, this.spec.label, this._mark());
    this.element = h("fieldset", { class: "field group" }, legend, this.hint, content, this.error);
    this._describe(this.element);
  }

  /** Show what is wrong with this field; false if `path` leads to no part of it. */
  showError(path, message) {
    this.error.textContent = message;
    this.error.hidden = false;
    this.invalid()?.setAttribute("aria-invalid", "true");
    return true;
  }

  clearErrors() {
    this.error.hidden = true;
    this.error.textContent = "";
    this.invalid()?.removeAttribute("aria-invalid");
  }

  /** The control that an error is about. */
  invalid() {
    return this.control;
  }

  /** Whether the value may be sent; shows an error if not. */
  check() {
    const message = this.problem();
    if (message) this.showError([], message);
    return !message;
  }

  /** What is wrong with the value, or "". */
  problem() {
    return this.spec.required && this.value === undefined ? "is needed" : "";
  }

  focus() {
    (this.invalid() ?? this.element.querySelector("input, textarea, select, button"))?.focus();
  }

  /** Tell the form that the value is another one. */
  changed() {
    this.clearErrors();
    this.element.dispatchEvent(new Event("change", { bubbles: true }));
  }

  _mark() {
    return this.spec.required && this.spec.mark !== false ? h("span", { class: "required" }, " needed") : null;
  }

  _describe(node) {
    const ids = [this.hint?.id, this.error.id].filter(Boolean);
    node.setAttribute("aria-describedby", ids.join(" "));
  }
}
