// Explains how a token was chosen: the most likely tokens after each stage.

import { breakable, h } from "./element.js";
import { oneTabStopEach, term } from "./term.js";
import { visible } from "./token_picker.js";
import { changeOf, confidenceOf, isFlipped, percent, takenBackText } from "./trace.js";

const BAN = -100;
const BOOST = 5;
const TITLES = { raw: "The model", guided_decoding: "Guided decoding", penalties: "Penalties", final: "The draw", filtered: "The filters" };
// Descriptions of stages without a distribution, by their status.
const WITHOUT_NUMBERS = {
  skipped: () => "not run: it changes no greedy choice",
  took_back: (stage) => ["took back ", h("s", {}, visible(takenBackText(stage)))],
};

export class TokenInspector {
  /** `dock`: its place on the page; `bias(token, value)` sets a token's bias (null if no processor can), then `onBiased()` is called. */
  constructor({ dock, bias, onBiased }) {
    this.dock = dock;
    this.bias = bias;
    this.onBiased = onBiased;
    this.asTable = false;
    this.element = h("section", { class: "inspector", "aria-label": "How the token came about", tabIndex: -1 });
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.close();
    });
  }

  /** Shows a token of an answer. */
  open(answer, place) {
    if (this.answer && this.answer !== answer) this.answer.mark(undefined);
    this.answer = answer;
    this.place = place;
    this._draw();
    answer.mark(place);
    this.dock.append(this.element);
    this.element.scrollTop = 0;
    this.element.focus({ preventScroll: true });
    answer.show(place);
  }

  close() {
    if (!this.answer) return;
    this.answer.mark(undefined);
    this.element.remove();
    this.answer.focusOn(this.place);
    this.answer = undefined;
  }

  _draw() {
    const trace = this.answer.traces[this.place];
    const view = this.asTable ? this._table(trace) : this._bars(trace);
    this.element.replaceChildren(this._head(trace), ...this._shadows(trace), view);
    oneTabStopEach(this.element);
  }

  _head(trace) {
    const flipped = isFlipped(trace) ? h("span", { class: "badge" }, term("flipped", "flipped by the chain")) : null;
    const title = h("h2", {}, "Token ", tokenText(trace.token), ` ${trace.token_id}`);
    const step = (label, sign, to) =>
      h("button", { type: "button", "aria-label": label, disabled: !this.answer.traces[to], onclick: () => this._goTo(to) }, sign);
    const table = h("button", { type: "button", "aria-pressed": String(this.asTable), onclick: () => this._turn() }, "As a table");
    const close = h("button", { type: "button", class: "quiet close", "aria-label": "Close", onclick: () => this.close() }, "✕");
    const steps = [step("Token before", "←", this.place - 1), step("Token after", "→", this.place + 1)];
    return h(
      "div",
      { class: "inspector-head" },
      h("div", { class: "inspector-title" }, h("div", {}, title, flipped), close),
      this._facts(trace),
      h("div", { class: "row" }, steps, this._biasButtons(trace), table),
    );
  }

  _facts(trace) {
    const confidence = confidenceOf(trace);
    return h(
      "p",
      { class: "small" },
      `number ${this.place + 1} of ${this.answer.traces.length}`,
      confidence === undefined ? null : [" · ", term("confidence"), ` ${percent(confidence)}`],
      " · ",
      term("moved by the chain", "moved"),
      ` ${percent(changeOf(trace))}`,
    );
  }

  _biasButtons(token) {
    if (!this.bias) return [];
    const name = visible(token.token);
    const give = (value) => () => {
      this.bias(token.token_id, value);
      this.onBiased();
    };
    return [
      h("button", { type: "button", "aria-label": `Ban ${name}`, onclick: give(BAN) }, "Ban"),
      h("button", { type: "button", "aria-label": `Boost ${name}`, onclick: give(BOOST) }, "Boost"),
    ];
  }

  _goTo(place) {
    this.open(this.answer, place);
  }

  _turn() {
    this.asTable = !this.asTable;
    this._draw();
    this.element.querySelector("[aria-pressed]").focus();
  }

  _shadows(trace) {
    return Object.entries(trace.shadows ?? {}).map(([name, shadow]) => {
      const would = shadow.changed
        ? [`With ${name}, in shadow, it would be `, shadow.token === null ? "no token at all" : tokenText(shadow.token), "."]
        : [`${name}, in shadow, would change nothing here.`];
      return h("p", { class: "shadow-note" }, shadow.failed ? `${name} failed in shadow.` : would);
    });
  }

  _bars(trace) {
    return h("ol", { class: "stages" }, trace.stages.map((stage) => this._stage(stage, trace.token_id)));
  }

  _stage(stage, sampled) {
    const title = h("h3", {}, titleOf(stage));
    if (stage.top.length === 0) {
      const why = WITHOUT_NUMBERS[stage.status]?.(stage) ?? stage.status;
      return h("li", { class: "stage" }, title, h("p", { class: "small" }, why));
    }
    const rows = [...stage.top];
    if (stage.sampled && !rows.some((each) => each.token_id === stage.sampled.token_id)) rows.push(stage.sampled);
    return h(
      "li",
      { class: "stage" },
      title,
      h("p", { class: "small" }, factsOf(stage)),
      h("ol", { class: "bars" }, rows.map((entry) => bar(entry, entry.token_id === sampled))),
    );
  }

  _table(trace) {
    const stages = trace.stages.filter((stage) => stage.top.length > 0);
    const tokens = new Map();
    for (const stage of stages) {
      for (const entry of [...stage.top, stage.sampled].filter(Boolean)) tokens.set(entry.token_id, entry);
    }
    const heads = stages.map((stage) => h("th", { scope: "col" }, titleOf(stage)));
    const action = this.bias ? h("th", { scope: "col" }, "Next time") : null;
    const rows = [...tokens.values()].map((token) => {
      const cells = stages.map((stage) => h("td", {}, cellOf(stage, token.token_id)));
      const last = this.bias ? h("td", {}, h("div", { class: "row" }, this._biasButtons(token))) : null;
      const name = h("th", { scope: "row" }, tokenText(token.token), ` ${token.token_id}`);
      return h("tr", { class: token.token_id === trace.token_id ? "sampled" : "" }, name, cells, last);
    });
    const facts = stages.map((stage) => h("td", {}, factsOf(stage)));
    const foot = h("tr", {}, h("th", { scope: "row" }, "Stage"), facts, this.bias ? h("td", {}) : null);
    const caption = h("caption", {}, "Probability and ", term("logit"), " of the most likely tokens after each stage");
    const table = h("table", {}, caption, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Token"), heads, action)), h("tbody", {}, rows), h("tfoot", {}, foot));
    return h("div", { class: "scrolls", tabIndex: 0, role: "region", "aria-label": "Table of the stages" }, table);
  }
}

function titleOf(stage) {
  return TITLES[stage.name] ? term(stage.name, TITLES[stage.name]) : breakable(stage.name);
}

function factsOf(stage) {
  const facts = [];
  if (stage.kind !== "model") facts.push([term("moved"), ` ${percent(stage.mass_moved ?? 0)}`]);
  facts.push([term("entropy"), ` ${(stage.entropy ?? 0).toFixed(2)}`]);
  if (stage.kind === "processor") facts.push(term("cost", `${(stage.seconds * 1e6).toFixed(0)} µs`));
  if (stage.flipped) facts.push(term("flipped", "flips the top token"));
  return facts.flatMap((fact, index) => [index ? " · " : "", h("span", { class: "fact" }, fact)]);
}

function bar(entry, isSampled) {
  const fill = h("span", { class: "bar-fill" });
  // Set through the DOM: a style attribute would need a weaker content security policy.
  fill.style.width = `${entry.probability * 100}%`;
  const name = h("span", { class: "bar-name" }, tokenText(entry.token), isSampled ? h("span", { class: "visually-hidden" }, " (sampled)") : null);
  const share = entry.logit === null ? term("ruled out") : percent(entry.probability);
  const line = h("div", { class: "bar-line" }, name, h("span", { class: "bar-share" }, share));
  return h("li", { class: isSampled ? "bar sampled" : "bar" }, line, h("div", { class: "bar-track" }, fill));
}

function cellOf(stage, token) {
  const found = stage.top.find((each) => each.token_id === token) ?? (stage.sampled?.token_id === token ? stage.sampled : null);
  if (!found) return "–";
  return found.logit === null ? term("ruled out") : `${percent(found.probability)} (${found.logit.toFixed(2)})`;
}

function tokenText(text) {
  return h("span", { class: "token-text" }, visible(text));
}
