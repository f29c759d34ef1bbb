// The sampling fields of a request, and its trace settings.

import { h } from "./element.js";
import { NumberField, TextField } from "./scalar_fields.js";

const FIELDS = [
  { name: "temperature", schema: { type: "number", minimum: 0, maximum: 2 }, value: 0, hint: "0 takes the most likely token" },
  { name: "max_tokens", schema: { type: "integer", minimum: 1 }, value: 64, hint: "tokens of the answer" },
  { name: "top_p", schema: { type: "number", exclusiveMinimum: 0, maximum: 1 }, hint: "above 0 to 1" },
  { name: "top_k", schema: { type: "integer" }, hint: "0 keeps all" },
  { name: "min_p", schema: { type: "number", minimum: 0, maximum: 1 }, hint: "0 to 1" },
  { name: "seed", schema: { type: "integer", minimum: 0 }, hint: "drawn anew if empty" },
  { name: "repetition_penalty", schema: { type: "number", exclusiveMinimum: 0 }, hint: "above 1 for less" },
  { name: "presence_penalty", schema: { type: "number", minimum: -2, maximum: 2 }, hint: "-2 to 2" },
  { name: "frequency_penalty", schema: { type: "number", minimum: -2, maximum: 2 }, hint: "-2 to 2" },
];
const STOP = { name: "stop", schema: {}, hint: "one text a line; the answer ends before it" };
const TOP_K = { name: "top_k of the trace", schema: { type: "integer", minimum: 1, maximum: 20 }, value: 8, hint: "1 to 20 at each stage" };
const TRACE = "logits_processors_trace";

export class SamplingPanel {
  constructor(place) {
    this.usual = Object.fromEntries([...FIELDS, STOP].map(({ name, value }) => [name, value]));
    this.fields = new Map(FIELDS.map((spec) => [spec.name, new NumberField(labelled(spec))]));
    this.fields.set(STOP.name, new TextField(labelled(STOP)));
    this.topK = new NumberField({ ...labelled(TOP_K), label: "Tokens shown" });
    this.trace = h("input", { type: "checkbox", id: "trace", checked: true });
    this.compare = h("input", { type: "checkbox", id: "compare" });
    this.settings = { fields: this.usual, trace: true, topK: TOP_K.value, compare: false };
    const check = (input, text) => h("div", { class: "check" }, input, h("label", { for: input.id }, text));
    place.append(
      check(this.compare, "Answer a second time with the chain off, side by side"),
      check(this.trace, "Trace the tokens"),
      this.topK.element,
      h("div", { class: "columns" }, [...this.fields.values()].map((field) => field.element)),
    );
  }

  get settings() {
    const fields = Object.fromEntries([...this.fields].map(([name, field]) => [name, field.value]));
    return { fields, trace: this.trace.checked, topK: this.topK.value, compare: this.compare.checked };
  }

  set settings({ fields, trace, topK, compare }) {
    for (const [name, field] of this.fields) field.value = fields?.[name];
    this.trace.checked = Boolean(trace);
    this.compare.checked = Boolean(compare);
    this.topK.value = topK ?? TOP_K.value;
    this.clearErrors();
  }

  reset() {
    this.settings = { fields: this.usual, trace: true, topK: TOP_K.value, compare: false };
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

function labelled(spec) {
  return { ...spec, label: h("code", {}, spec.name) };
}
