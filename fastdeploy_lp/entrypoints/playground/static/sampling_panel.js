// The sampling fields of a request, and its trace settings.

import { h } from "./element.js";
import { NumberField, TextField } from "./scalar_fields.js";
import { alternatives } from "./schema.js";

// Values that a new conversation starts with; the server's defaults apply to the other fields.
const INITIAL = { temperature: 0, max_tokens: 64 };
const TOP_K = { name: "top_k of the trace", schema: { type: "integer", minimum: 1, maximum: 20 }, value: 8, hint: "1 to 20 at each stage" };
const TRACE = "logits_processors_trace";

export class SamplingPanel {
  constructor(place) {
    this.fields = new Map();
    this.topK = new NumberField({ ...labelled(TOP_K), label: "Tokens shown" });
    this.trace = h("input", { type: "checkbox", id: "trace", checked: true });
    this.compare = h("input", { type: "checkbox", id: "compare" });
    this.columns = h("div", { class: "columns" });
    const check = (input, text) => h("div", { class: "check" }, input, h("label", { for: input.id }, text));
    place.append(
      check(this.compare, "Answer a second time with the chain off, side by side"),
      check(this.trace, "Trace the tokens"),
      this.topK.element,
      this.columns,
    );
    this.reset();
  }

  /** Builds the controls of the fields that a body's JSON Schema declares for them, and keeps what was entered. */
  show(schema, root) {
    const { settings } = this;
    const declared = Object.entries(schema.properties).filter(([, property]) => property["x-control"]);
    this.fields = new Map(declared.map(([name, property]) => [name, fieldOf(name, property, root)]));
    this.columns.replaceChildren(...[...this.fields.values()].map((field) => field.element));
    this.settings = settings;
  }

  get settings() {
    const shown = Object.fromEntries([...this.fields].map(([name, field]) => [name, field.value]));
    return { fields: { ...this.kept, ...shown }, trace: this.trace.checked, topK: this.topK.value, compare: this.compare.checked };
  }

  set settings({ fields, trace, topK, compare }) {
    // Values of fields that are not shown yet.
    this.kept = fields ?? {};
    for (const [name, field] of this.fields) field.value = fields?.[name];
    this.trace.checked = Boolean(trace);
    this.compare.checked = Boolean(compare);
    this.topK.value = topK ?? TOP_K.value;
    this.clearErrors();
  }

  reset() {
    this.settings = { fields: INITIAL, trace: true, topK: TOP_K.value, compare: false };
  }

  /** The fields of a request's body. */
  get body() {
    const body = Object.fromEntries([...this.fields].map(([name, field]) => [name, field.value]).filter(([, value]) => value !== undefined));
    if (body.stop !== undefined) body.stop = body.stop.split("\n").filter(Boolean);
    if (this.trace.checked) body[TRACE] = { top_k: this.topK.value ?? TOP_K.value };
    return body;
  }

  check() {
    return this._all()
      .map((field) => field.check())
      .every(Boolean);
  }

  /** Shows an error at a path of the body; false if this panel has no such field. */
  showError([name], message) {
    const field = name === TRACE ? this.topK : this.fields.get(name);
    if (!field) return false;
    field.showError([], message);
    field.focus();
    return true;
  }

  clearErrors() {
    for (const field of this._all()) field.clearErrors();
  }

  _all() {
    return [...this.fields.values(), this.topK];
  }
}

/** Returns the control of a body's property: for a number, or for texts. */
function fieldOf(name, property, root) {
  const { anyOf, ...bounds } = property;
  const number = alternatives({ anyOf: anyOf ?? [property] }, root).find(({ type }) => type === "number" || type === "integer");
  const hint = property.description;
  if (number) return new NumberField(labelled({ name, hint, schema: { ...bounds, type: number.type } }));
  return new TextField(labelled({ name, hint: `${hint}; one a line`, schema: property }));
}

function labelled(spec) {
  return { ...spec, label: h("code", {}, spec.name) };
}
