// A form generated from the JSON Schema of a processor's arguments.

import { h } from "./element.js";
import { Field } from "./field.js";
import { ListField, MapField, TokensField, TupleField } from "./list_fields.js";
import { BooleanField, ChoiceField, JsonField, NumberField, TextField } from "./scalar_fields.js";
import { alternatives, limitsOf, nameOf, resolved } from "./schema.js";

/** The fields of a schema's properties; `value` omits arguments that are not given or equal to their default. */
export class SchemaForm {
  constructor(schema, server) {
    this.defaults = new Map();
    this.fields = new Map();
    const required = schema.required ?? [];
    for (const [name, property] of Object.entries(schema.properties ?? {})) {
      const settled = resolved(property, schema);
      this.defaults.set(name, settled.default ?? undefined);
      const spec = { name, label: h("code", {}, name), schema: settled, root: schema, server };
      const field = newField({ ...spec, hint: hintOf(settled, schema), required: required.includes(name) });
      field.value = this.defaults.get(name);
      this.fields.set(name, field);
    }
    this.element = h("div", { class: "form" }, [...this.fields.values()].map((field) => field.element));
  }

  get value() {
    const given = [...this.fields].map(([name, field]) => [name, field.value]);
    return Object.fromEntries(given.filter(([name, value]) => value !== undefined && !this._isDefault(name, value)));
  }

  set value(params) {
    for (const [name, field] of this.fields) field.value = params?.[name] ?? this.defaults.get(name);
  }

  check() {
    return [...this.fields.values()].map((field) => field.check()).every(Boolean);
  }

  showError([name, ...rest], message) {
    return this.fields.get(name)?.showError(rest, message) ?? false;
  }

  clearErrors() {
    for (const field of this.fields.values()) field.clearErrors();
  }

  /** The first field that is a map with token ids as keys; undefined if there is none. */
  get tokenMap() {
    return [...this.fields.values()].find((field) => field instanceof MapField && field.ofTokens);
  }

  _isDefault(name, value) {
    const usual = this.defaults.get(name);
    // A checkbox without a default has the value false.
    return JSON.stringify(value) === JSON.stringify(usual) || (value === false && usual === undefined);
  }
}

/** An object as a form within a form. */
class ObjectField extends Field {
  constructor(spec) {
    super(spec);
    this.form = new SchemaForm({ $defs: spec.root.$defs, ...spec.schema }, spec.server);
    this.wrapGroup(this.form.element);
  }

  get value() {
    const found = this.form.value;
    return Object.keys(found).length ? found : undefined;
  }

  set value(value) {
    this.form.value = value;
  }

  check() {
    return this.value === undefined && !this.spec.required ? true : this.form.check();
  }

  showError(path, message) {
    return this.form.showError(path, message) || super.showError([], message);
  }

  invalid() {
    return null;
  }
}

/** A value with one of several forms, which the user selects. */
class UnionField extends Field {
  constructor(spec, options) {
    super(spec);
    this.options = options;
    const names = options.map((option, index) => h("option", { value: String(index) }, nameOf(option, spec.root)));
    this.kind = h("select", { class: "kind", "aria-label": `Form of ${spec.name}` }, names);
    this.place = h("div", {});
    this.kind.addEventListener("change", () => this._show(Number(this.kind.value)));
    this.wrapGroup(this.kind, this.place);
    this._show(0);
  }

  get value() {
    return this.inner.value;
  }

  set value(value) {
    const index = this.options.findIndex((option) => fits(value, option, this.spec.root));
    if (index >= 0) this._show(index);
    this.inner.value = value;
  }

  check() {
    return super.check() && this.inner.check();
  }

  showError(path, message) {
    return this.inner.showError(path, message);
  }

  clearErrors() {
    super.clearErrors();
    this.inner?.clearErrors();
  }

  invalid() {
    return null;
  }

  _show(index) {
    this.kind.value = String(index);
    const label = h("span", { class: "visually-hidden" }, nameOf(this.options[index], this.spec.root));
    this.inner = newField({ ...this.spec, schema: this.options[index], label, hint: "", required: false });
    this.place.replaceChildren(this.inner.element);
  }
}

/** Returns the field for a schema. */
export function newField(spec) {
  const options = alternatives(spec.schema, spec.root);
  if (options.length > 1) return new UnionField(spec, options);
  const schema = { ...spec.schema, ...(options[0] ?? {}) };
  const settled = { ...spec, schema };
  if (schema.enum || schema.const !== undefined) return new ChoiceField(settled);
  switch (schema.type) {
    case "boolean":
      return new BooleanField(settled);
    case "integer":
    case "number":
      return new NumberField(settled);
    case "string":
      return new TextField(settled);
    case "array":
      return listField(settled);
    case "object":
      if (schema.properties) return new ObjectField(settled);
      return schema.additionalProperties ? new MapField(settled, newField) : new JsonField(settled);
    default:
      return new JsonField(settled);
  }
}

function listField(spec) {
  if (spec.schema.prefixItems) return new TupleField(spec, newField);
  const items = spec.schema.items ? alternatives(spec.schema.items, spec.root) : [];
  const areTokens = items.length === 1 && items[0].format === "token-id";
  return areTokens ? new TokensField(spec) : new ListField(spec, newField);
}

function fits(value, schema, root) {
  const settled = resolved(schema, root);
  if (settled.type === "array") {
    const inner = settled.items ? alternatives(settled.items, root) : [];
    return Array.isArray(value) && value.every((each) => inner.length === 0 || inner.some((option) => fits(each, option, root)));
  }
  const kinds = { string: "string", boolean: "boolean", integer: "number", number: "number", object: "object" };
  return typeof value === kinds[settled.type];
}

function hintOf(schema, root) {
  const options = alternatives(schema, root);
  const parts = [schema.description ?? "", options.length === 1 ? limitsOf({ ...schema, ...options[0] }) : ""];
  const usual = schema.default;
  // An empty control already shows an empty default.
  if (usual !== undefined && !["null", "false", "[]", "{}", '""'].includes(JSON.stringify(usual))) {
    parts.push(`default ${JSON.stringify(usual)}`);
  }
  return parts.filter(Boolean).join("; ");
}
