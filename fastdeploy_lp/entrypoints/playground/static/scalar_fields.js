// Fields with one control.

import { h } from "./element.js";
import { Field } from "./field.js";

export class TextField extends Field {
  constructor(spec) {
    super(spec);
    this.wrapControl(
      h("textarea", { rows: 1, class: "grows", placeholder: spec.placeholder ?? "", spellcheck: false }),
    );
    this.control.addEventListener("input", () => this.clearErrors());
  }

  get value() {
    return this.control.value === "" ? undefined : this.control.value;
  }

  set value(value) {
    this.control.value = value ?? "";
  }
}

export class NumberField extends Field {
  constructor(spec) {
    super(spec);
    const { type } = spec.schema;
    this.wrapControl(
      h("input", {
        type: "text",
        inputMode: type === "integer" && !(spec.schema.minimum < 0) ? "numeric" : "text",
        autocomplete: "off",
        placeholder: spec.placeholder ?? "",
      }),
    );
    this.control.addEventListener("input", () => this.clearErrors());
  }

  get value() {
    const text = this.control.value.trim();
    if (text === "") return undefined;
    const number = Number(text);
    return Number.isFinite(number) ? number : text;
  }

  set value(value) {
    this.control.value = value === undefined || value === null ? "" : String(value);
  }

  problem() {
    const { value } = this;
    if (value === undefined) return super.problem();
    if (typeof value !== "number") return "must be a number";
    const { schema } = this.spec;
    if (schema.type === "integer" && !Number.isInteger(value)) return "must be a whole number";
    if (schema.minimum !== undefined && value < schema.minimum) return `must be at least ${schema.minimum}`;
    if (schema.maximum !== undefined && value > schema.maximum) return `must be at most ${schema.maximum}`;
    if (value <= schema.exclusiveMinimum) return `must be above ${schema.exclusiveMinimum}`;
    if (value >= schema.exclusiveMaximum) return `must be below ${schema.exclusiveMaximum}`;
    return "";
  }
}

export class ChoiceField extends Field {
  constructor(spec) {
    super(spec);
    const choices = spec.schema.enum ?? [spec.schema.const];
    this.choices = choices;
    const open = spec.required ? null : h("option", { value: "" }, "not given");
    const options = choices.map((choice, index) => h("option", { value: String(index) }, String(choice)));
    this.wrapControl(h("select", {}, open, options));
    this.control.addEventListener("change", () => this.clearErrors());
  }

  get value() {
    return this.control.value === "" ? undefined : this.choices[Number(this.control.value)];
  }

  set value(value) {
    const index = this.choices.indexOf(value);
    this.control.value = index < 0 ? "" : String(index);
  }
}

export class BooleanField extends Field {
  constructor(spec) {
    super(spec);
    this.control = h("input", { type: "checkbox", id: this.id });
    this._describe(this.control);
    const label = h("label", { for: this.id, class: "field-label" }, this.spec.label);
    this.element = h("div", { class: "field" }, h("div", { class: "check" }, this.control, label), this.hint, this.error);
    this.control.addEventListener("change", () => this.clearErrors());
  }

  get value() {
    return this.control.checked;
  }

  set value(value) {
    this.control.checked = Boolean(value);
  }
}

/** A field for JSON text, for values without a specific form. */
export class JsonField extends Field {
  constructor(spec) {
    super(spec);
    this.wrapControl(
      h("textarea", { rows: 3, class: "code", spellcheck: false, placeholder: spec.placeholder ?? "{}" }),
    );
    this.control.addEventListener("input", () => this.clearErrors());
  }

  get value() {
    const text = this.control.value.trim();
    if (text === "") return undefined;
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }

  set value(value) {
    this.control.value = value === undefined || value === null ? "" : JSON.stringify(value, null, 1);
  }

  problem() {
    const text = this.control.value.trim();
    if (text === "") return super.problem();
    try {
      const value = JSON.parse(text);
      const wrong = this.spec.schema.type === "object" && (typeof value !== "object" || Array.isArray(value) || !value);
      return wrong ? "must be a JSON object" : "";
    } catch (error) {
      return `is no JSON: ${error.message}`;
    }
  }
}
