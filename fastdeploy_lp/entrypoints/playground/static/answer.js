// One answer of the model, shown as it arrives.

import { h } from "./element.js";
import { Stopwatch } from "./stopwatch.js";
import { term } from "./term.js";
import { takenBack, tokenChip } from "./token_chip.js";
import { TokenTexts, changeOf, isFlipped, rewindsOf } from "./trace.js";

// Characters of a processor's values below an answer.
const SHOWN_VALUES = 300;

export class Answer {
  /** `chain`: the active processors in words; `opened(answer, place)` is called when the user opens a token. */
  constructor(title, chain, opened) {
    this.title = title;
    this.opened = opened;
    this.differences = [];
    this.stopwatch = new Stopwatch();
    this.text = "";
    this.traces = [];
    this.emitted = new Map();
    this.texts = new TokenTexts();
    this.chosen = 0;
    this.content = h("div", { class: "tokens-of-answer" });
    this.status = h("p", { class: "answer-status small" }, "…");
    this.problem = h("p", { class: "error", role: "alert", hidden: true });
    this.heading = h("h3", {}, title);
    this.element = h(
      "article",
      { class: "answer", "aria-label": title, "aria-busy": "true" },
      h("div", { class: "answer-head" }, this.heading, h("span", { class: "small" }, chain.join(", ") || "no processor")),
      this.content,
      this.problem,
      this.status,
    );
    this.content.addEventListener("keydown", (event) => this._onKey(event));
    this.content.addEventListener("click", (event) => this._onClick(event));
  }

  /** Adds one chunk of the stream. */
  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    this.stopwatch.count(this.usage?.completion_tokens ?? 0);
    for (const choice of chunk.choices) {
      this.text += choice.delta.content ?? "";
      if (choice.finish_reason) this.reason = reasonOf(choice);
      for (const [name, values] of Object.entries(choice.logits_processors_outputs ?? {})) {
        this.emitted.set(name, [...(this.emitted.get(name) ?? []), ...values]);
      }
      if (choice.logits_processors_shadow) this.shadows = choice.logits_processors_shadow;
      for (const trace of choice.logits_processors_trace ?? []) this._addToken(trace);
    }
    if (this.traces.length === 0) this.content.textContent = this.text;
    this._showStatus([`${this.stopwatch.tokens} tokens`, ...this._speed()]);
  }

  /** Number of the answer's run among the runs of its question; undefined for a single run. */
  set run(number) {
    const title = number === undefined ? this.title : `${this.title} ${number}`;
    this.heading.textContent = title;
    this.element.setAttribute("aria-label", title);
  }

  /** Marks the answer as complete and shows its summary. */
  finish() {
    this.element.setAttribute("aria-busy", "false");
    // The token that ends an answer is not part of its text.
    const last = this.traces.at(-1);
    if (last && !this.text.endsWith(last.token)) this.chips.at(-1).classList.add("special");
    this._showStatus(this._summary());
  }

  /** Shows the error that ended the answer. */
  fail(message) {
    this.problem.textContent = message;
    this.problem.hidden = false;
  }

  stopped() {
    this.reason = "stopped by you";
  }

  /** Removes the marks of former comparisons. */
  forgetDifferences() {
    this.differences = [];
    for (const chip of this.chips) chip.classList.remove("differs");
    this.finish();
  }

  /** Shows where this answer begins to differ from another one. */
  compareWith(other) {
    const ids = this.traces.map((trace) => trace.token_id);
    const others = other.traces.map((trace) => trace.token_id);
    if (ids.length === 0 || others.length === 0) return;
    const at = ids.findIndex((id, place) => id !== others[place]);
    const differs = at >= 0 || ids.length !== others.length;
    const place = at >= 0 ? at : Math.min(ids.length, others.length);
    const from = other.heading.textContent;
    const text = differs ? `differs from token ${place + 1} on` : "the same tokens";
    this.differences.push(h("span", {}, differs ? term("differs", text) : text, ` (${from})`));
    if (differs) for (const each of [this, other]) each.chips[place]?.classList.add("differs");
    this.finish();
  }

  get chips() {
    return [...this.content.querySelectorAll(".chip")];
  }

  /** Marks the open token; undefined for none. */
  mark(place) {
    this.chips.forEach((chip, index) => {
      chip.classList.toggle("open", index === place);
      chip.tabIndex = index === (place ?? this.chosen) ? 0 : -1;
      if (index === place) chip.setAttribute("aria-current", "true");
      else chip.removeAttribute("aria-current");
    });
    if (place !== undefined) this.chosen = place;
  }

  /** Scrolls to the first token that differs. */
  showDifference() {
    this.show(this.chips.findIndex((chip) => chip.classList.contains("differs")));
  }

  /** Scrolls to a token, unless it is in sight. */
  show(place) {
    this.chips[place]?.scrollIntoView({ block: "nearest" });
  }

  focusOn(place) {
    this.chosen = place;
    const { chips } = this;
    chips.forEach((chip, index) => (chip.tabIndex = index === place ? 0 : -1));
    chips[place]?.focus();
  }

  _addToken(trace) {
    const place = this.traces.length;
    if (place === 0) {
      this.content.textContent = "";
      this.content.setAttribute("role", "group");
      this.content.setAttribute("aria-label", "Tokens of the answer. Arrow keys move, Enter opens one.");
    }
    this.traces.push(trace);
    const chip = tokenChip(trace, this.texts.next(trace), place);
    if (place === 0) chip.tabIndex = 0;
    this.content.append(...rewindsOf(trace).map(takenBack), chip);
  }

  _onClick(event) {
    const chip = event.target.closest(".chip");
    if (chip) this.opened(this, this.chips.indexOf(chip));
  }

  _onKey(event) {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this._onClick(event);
      return;
    }
    const last = this.traces.length - 1;
    const to = {
      ArrowLeft: this.chosen - 1,
      ArrowRight: this.chosen + 1,
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined || !event.target.classList.contains("chip")) return;
    event.preventDefault();
    this.focusOn(Math.max(0, Math.min(last, to)));
  }

  _showStatus(parts) {
    this.status.replaceChildren(...parts.flatMap((part, index) => (index ? [" · ", part] : [part])));
  }

  _speed() {
    const { tokensPerSecond, secondsToFirst } = this.stopwatch;
    const parts = [];
    if (tokensPerSecond !== undefined) parts.push(h("span", {}, `${tokensPerSecond.toFixed(tokensPerSecond < 10 ? 1 : 0)} `, term("tokens/s")));
    if (secondsToFirst !== undefined) parts.push(h("span", {}, term("first token"), ` after ${secondsToFirst.toFixed(2)} s`));
    return parts;
  }

  _summary() {
    const parts = [];
    if (this.usage) parts.push(`${this.usage.completion_tokens} tokens`);
    parts.push(...this._speed());
    if (this.reason) parts.push(this.reason === "length" ? "cut at max_tokens" : this.reason);
    const flips = this.traces.filter(isFlipped).length;
    const changed = this.traces.filter((trace) => changeOf(trace) >= 0.01).length;
    if (this.traces.length) parts.push(h("span", {}, `${changed} changed by the chain, ${flips} `, term("flipped")));
    const rewinds = this.traces.flatMap(rewindsOf).length;
    if (rewinds) parts.push(`${rewinds} ${rewinds === 1 ? "rewind" : "rewinds"}`);
    for (const [name, values] of this.emitted) parts.push(`${name} emitted ${cut(JSON.stringify(values))}`);
    for (const [name, report] of Object.entries(this.shadows ?? {})) {
      const failed = report.faults ? `, failed on ${report.faults}` : "";
      parts.push(`${name} in shadow would have changed ${report.changed} of ${report.tokens}${failed}`);
    }
    if (this.seed !== undefined) parts.push(h("span", {}, term("seed"), ` ${this.seed}`));
    return [...parts, ...this.differences];
  }
}

/** Returns the reason for the end of a choice, with the processor that has asked for it. */
function reasonOf({ finish_reason, stop_reason }) {
  return stop_reason?.processor ? `ended by ${stop_reason.processor}: ${stop_reason.reason}` : finish_reason;
}

function cut(text) {
  return text.length > SHOWN_VALUES ? `${text.slice(0, SHOWN_VALUES)} …` : text;
}
