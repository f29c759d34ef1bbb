// Fields with several values: lists, pairs, maps and token ids.

import { h } from "./element.js";
import { Field } from "./field.js";
import { nameOf } from "./schema.js";
import { tokenName, TokenPicker } from "./token_picker.js";

/** A list with a field per value; `newField(spec)` creates one. */
export class ListField extends Field {
  constructor(spec, newField) {
    super(spec);
    this.newField = newField;
    this.entries = [];
    this.rows = h("ol", { class: "entries" });
    const add = () => {
      this._add(undefined).field.focus();
      this.changed();
    };
    this.wrapGroup(this.rows, h("button", { type: "button", class: "small-button", onclick: add }, "Add an entry"));
  }

  get value() {
    const values = this.entries.map(({ field }) => field.value).filter((value) => value !== undefined);
    return values.length ? values : undefined;
  }

  set value(values) {
    this.entries = [];
    this.rows.replaceChildren();
    for (const value of values ?? []) this._add(value);
  }

  check() {
    const inner = this.entries.map(({ field }) => field.check()).every(Boolean);
    return super.check() && inner;
  }

  showError([index, ...rest], message) {
    // Fields without a value are not sent, so the server's indices do not count them.
    const sent = this.entries.filter(({ field }) => field.value !== undefined);
    const entry = sent[Number(index)];
    return entry && index !== undefined ? entry.field.showError(rest, message) : super.showError([], message);
  }

  clearErrors() {
    super.clearErrors();
    for (const { field } of this.entries) field.clearErrors();
  }

  invalid() {
    return null;
  }

  _add(value) {
    const { items, prefixItems } = this.spec.schema;
    const label = `Entry ${this.entries.length + 1}`;
    const field = this.newField({ ...this.spec, schema: items ?? prefixItems?.[0] ?? {}, label, hint: "", required: false });
    if (value !== undefined) field.value = value;
    const entry = { field };
    const remove = () => {
      this.entries.splice(this.entries.indexOf(entry), 1);
      entry.row.remove();
      this.changed();
      this.element.querySelector(":scope > button").focus();
    };
    entry.row = h("li", {}, field.element, removeButton(label, remove));
    this.entries.push(entry);
    this.rows.append(entry.row);
    return entry;
  }
}

/** A list of fixed length with a separate schema for each position. */
export class TupleField extends Field {
  constructor(spec, newField) {
    super(spec);
    this.fields = spec.schema.prefixItems.map((schema, index) =>
      newField({ ...spec, schema, label: `${index + 1}. ${nameOf(schema, spec.root)}`, hint: "", required: false }),
    );
    this.wrapGroup(this.fields.map((field) => field.element));
  }

  get value() {
    const values = this.fields.map((field) => field.value);
    return values.every((value) => value === undefined) ? undefined : values.map((value) => value ?? null);
  }

  set value(values) {
    this.fields.forEach((field, index) => (field.value = values?.[index]));
  }

  check() {
    const given = this.value;
    const missing = given?.includes(null) ? "all of its parts are needed" : "";
    if (missing) this.showError([], missing);
    const inner = this.fields.map((field) => field.check()).every(Boolean);
    return super.check() && inner && !missing;
  }

  showError([index, ...rest], message) {
    const field = index === undefined ? undefined : this.fields[Number(index)];
    return field ? field.showError(rest, message) : super.showError([], message);
  }

  clearErrors() {
    super.clearErrors();
    this.fields?.forEach((field) => field.clearErrors());
  }

  invalid() {
    return null;
  }
}

/** Token ids, selected by their text. */
export class TokensField extends Field {
  constructor(spec) {
    super(spec);
    this.tokens = [];
    this.rows = h("ul", { class: "tokens" });
    const picker = new TokenPicker(spec.server, (token) => {
      this.value = [...this.tokens, token.id];
      this.changed();
    });
    this.wrapGroup(this.rows, picker.element);
  }

  get value() {
    return this.tokens.length ? [...this.tokens] : undefined;
  }

  set value(tokens) {
    this.tokens = [...(tokens ?? [])];
    this.rows.replaceChildren(...this.tokens.map((token, index) => this._row(token, index)));
  }

  invalid() {
    return null;
  }

  _row(token, index) {
    const remove = () => {
      this.value = this.tokens.toSpliced(index, 1);
      this.changed();
      this.element.querySelector("input").focus();
    };
    return h("li", {}, tokenName(this.spec.server, token), ` ${token} `, removeButton(`token ${token}`, remove));
  }
}

/** An object with keys from the client; token ids as keys are selected by their text. */
export class MapField extends Field {
  constructor(spec, newField) {
    super(spec);
    this.newField = newField;
    this.entries = [];
    this.rows = h("ul", { class: "entries" });
    this.ofTokens = spec.schema.propertyNames?.format === "token-id";
    this.wrapGroup(this.rows, this.ofTokens ? this._tokenAdder() : this._keyAdder());
  }

  get value() {
    const pairs = this.entries.map(({ key, field }) => [key, field.value]).filter(([, value]) => value !== undefined);
    return pairs.length ? Object.fromEntries(pairs) : undefined;
  }

  set value(object) {
    this.entries = [];
    this.rows.replaceChildren();
    for (const [key, value] of Object.entries(object ?? {})) this._add(key, value);
  }

  /** Sets the value of a key, which it adds if missing. */
  put(key, value) {
    const entry = this.entries.find((each) => each.key === key) ?? this._add(key, undefined);
    entry.field.value = value;
    this.changed();
    return entry;
  }

  check() {
    const inner = this.entries.map(({ field }) => field.check()).every(Boolean);
    return super.check() && inner;
  }

  showError([key, ...rest], message) {
    const entry = this.entries.find((each) => each.key === key);
    return entry ? entry.field.showError(rest, message) : super.showError([], message);
  }

  clearErrors() {
    super.clearErrors();
    for (const { field } of this.entries) field.clearErrors();
  }

  invalid() {
    return null;
  }

  _add(key, value) {
    const schema = this.spec.schema.additionalProperties;
    const label = h("span", {}, this.ofTokens ? [tokenName(this.spec.server, Number(key)), ` ${key}`] : key);
    const field = this.newField({ ...this.spec, schema: schema === true ? {} : schema, label, hint: "", required: true, mark: false });
    if (value !== undefined) field.value = value;
    const entry = { key, field };
    const remove = () => {
      this.entries.splice(this.entries.indexOf(entry), 1);
      entry.row.remove();
      this.changed();
      this.element.querySelector(":scope > div input").focus();
    };
    entry.row = h("li", { dataset: { key } }, field.element, removeButton(key, remove));
    this.entries.push(entry);
    this.rows.append(entry.row);
    return entry;
  }

  _tokenAdder() {
    return new TokenPicker(this.spec.server, (token) => this._begin(String(token.id))).element;
  }

  _keyAdder() {
    const input = h("input", { type: "text", autocomplete: "off", "aria-label": `New key of ${this.spec.name}` });
    const add = () => {
      if (input.value === "") return;
      this._begin(input.value);
      input.value = "";
    };
    input.addEventListener("change", (event) => event.stopPropagation());
    return h("div", { class: "row" }, input, h("button", { type: "button", onclick: add }, "Add"));
  }

  _begin(key) {
    const entry = this.entries.find((each) => each.key === key) ?? this._add(key, undefined);
    entry.field.focus();
    this.changed();
  }
}

function removeButton(what, remove) {
  return h("button", { type: "button", class: "icon-button", "aria-label": `Remove ${what}`, onclick: remove }, "×");
}
