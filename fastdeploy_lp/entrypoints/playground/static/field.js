// One argument of a form: a label, a control, a hint and an error.

import { h, newId } from "./element.js";

/**
 * The base of all fields. A subclass builds its controls and has a getter and setter for `value`; undefined means
 * "not given". `spec`: `label`, `hint`, `required`, `schema`, `root` (with the schema's definitions) and `server`.
 */
export class Field {
  constructor(spec) {
    this.spec = spec;
    this.id = newId("field");
    this.error = h("p", { class: "error", id: `${this.id}-error`, hidden: true });
    this.hint = spec.hint ? h("p", { class: "hint", id: `${this.id}-hint` }, spec.hint) : null;
  }

  /** Builds the element around one control. */
  wrapControl(control) {
    this.control = control;
    control.id = this.id;
    this._describe(control);
    const label = h("label", { for: this.id, class: "field-label" }, this.spec.label, this._mark());
    this.element = h("div", { class: "field" }, label, control, this.hint, this.error);
  }

  /** Builds the element around several controls. */
  wrapGroup(...content) {
    const legend = h("legend", { class: "field-label" }, this.spec.label, this._mark());
    this.element = h("fieldset", { class: "field group" }, legend, this.hint, content, this.error);
    this._describe(this.element);
  }

  /** Shows an error of this field; false if the field has no part at `path`. */
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

  /** Returns the control to mark as invalid. */
  invalid() {
    return this.control;
  }

  /** True if the value is valid; otherwise shows an error. */
  check() {
    const message = this.problem();
    if (message) this.showError([], message);
    return !message;
  }

  /** Returns the value's error message, or "". */
  problem() {
    return this.spec.required && this.value === undefined ? "is needed" : "";
  }

  focus() {
    (this.invalid() ?? this.element.querySelector("input, textarea, select, button"))?.focus();
  }

  /** Notifies the form of a changed value. */
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
