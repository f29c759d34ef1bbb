// The chat: past turns, the running answer, and the next message.

import { announce } from "./announcer.js";
import { Answer } from "./answer.js";
import { h } from "./element.js";
import { ServerError } from "./server.js";

const SEEDS = 2 ** 31;
const NEAR = 60;

export class Conversation {
  /**
   * `request()` returns a body without messages, or null if it is invalid; `compares()` is true for two answers per
   * question; `system()` returns the system message; `refused(error)` shows an error at its field and returns true if
   * there is one.
   */
  constructor({ server, inspector, request, compares, system, refused }) {
    Object.assign(this, { server, inspector, request, compares, system, refused });
    this.turns = [];
    this.log = document.getElementById("log");
    this.welcome = document.getElementById("welcome");
    this.message = document.getElementById("message");
    this.error = document.getElementById("message-error");
    this.send = document.getElementById("send");
    this.stop = document.getElementById("stop");
    this.again = document.getElementById("again");
    this.clear = document.getElementById("clear");
    document.getElementById("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(this.message.value);
    });
    this.message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask(this.message.value);
    });
    this.message.addEventListener("input", () => this._showError(""));
    this.stop.addEventListener("click", () => this.abort?.abort());
    this.again.addEventListener("click", () => this.runAgain());
    this.clear.addEventListener("click", () => this.reset());
    this._settle();
  }

  /** Returns the messages of a request that continues the chat. */
  messages(question) {
    const found = [];
    const system = this.system();
    if (system) found.push({ role: "system", content: system });
    for (const turn of this.turns) {
      found.push({ role: "user", content: turn.question }, { role: "assistant", content: turn.answer.text });
    }
    if (question !== undefined) found.push({ role: "user", content: question });
    return found;
  }

  /** Returns the body for the typed message, or for the last question if none is typed. */
  nextBody(body) {
    const typed = this.message.value.trim();
    if (typed) return { messages: this.messages(typed), ...body };
    const last = this.turns.pop();
    const messages = this.messages(last?.question ?? "Hello");
    if (last) this.turns.push(last);
    return { messages, ...body };
  }

  async ask(text) {
    if (this.abort) return;
    const question = text.trim();
    if (question === "") {
      this._showError("write a message first");
      this.message.focus();
      return;
    }
    const body = this.request();
    if (!body) return;
    this.message.value = "";
    await this._run(question, body);
  }

  /** Asks the last question again, with the current settings. */
  async runAgain() {
    const body = this.abort || this.turns.length === 0 ? null : this.request();
    if (!body) return;
    const last = this.turns.pop();
    this.inspector.close();
    if (!(await this._run(last.question, body, last))) return;
    last.element.remove();
  }

  reset() {
    this.inspector.close();
    this.turns = [];
    this.log.replaceChildren(this.welcome);
    this._settle();
    this.message.focus();
  }

  /** Asks a question; false if the server refused it, which leaves the chat unchanged. */
  async _run(question, body, before) {
    // -1 draws a seed too; both answers need the same one.
    const seed = (body.seed ?? -1) === -1 ? Math.floor(Math.random() * SEEDS) : body.seed;
    const answers = this._answers(seed);
    const turn = { question, answer: answers[0], element: this._turn(question, answers) };
    this._showError("");
    this.abort = new AbortController();
    this._settle();
    this.welcome.remove();
    this.log.append(turn.element);
    turn.element.scrollIntoView({ block: "nearest" });
    const common = { messages: this.messages(question), ...body, seed, stream: true, stream_options: { include_usage: true } };
    const bodies = [common, { ...common, logits_processors: [] }];
    const refusals = await Promise.all(answers.map((answer, index) => this._fill(answer, bodies[index])));
    this.abort = undefined;
    const refusal = refusals.find(Boolean);
    if (refusal) this._takeBack(turn, question, refusal, before);
    else this._keep(turn, answers);
    this._settle();
    return !refusal;
  }

  _answers(seed) {
    const open = (answer, place) => this.inspector.open(answer, place);
    const titles = this.compares() ? ["With the chain", "Chain off"] : ["Answer"];
    const answers = titles.map((title) => new Answer(title, open));
    for (const answer of answers) answer.seed = seed;
    return answers;
  }

  _turn(question, answers) {
    return h(
      "div",
      { class: "turn" },
      h("div", { class: "question" }, h("h3", { class: "visually-hidden" }, "You"), h("p", {}, question)),
      h("div", { class: answers.length > 1 ? "answers two" : "answers" }, answers.map((answer) => answer.element)),
    );
  }

  /** Streams an answer into its element; returns the error if the server refused the request. */
  async _fill(answer, body) {
    let began = false;
    try {
      for await (const chunk of this.server.chat(body, this.abort.signal)) {
        began = true;
        const follows = this._isAtItsEnd();
        answer.take(chunk);
        if (follows) this.log.scrollTop = this.log.scrollHeight;
      }
    } catch (error) {
      if (error.name === "AbortError") answer.stopped();
      else if (!(error instanceof ServerError)) throw error;
      else if (began) answer.fail(error.message);
      else return this._giveUp(error);
    } finally {
      answer.finish();
    }
    return null;
  }

  /** Aborts the other answer of a refused question and returns the error. */
  _giveUp(error) {
    this.abort.abort();
    return error;
  }

  /** True if the log is scrolled to its end. */
  _isAtItsEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  _keep(turn, answers) {
    this.turns.push(turn);
    if (answers.length > 1) answers[0].compareWith(answers[1]);
    announce(`The answer is complete: ${answers[0].text}`);
  }

  /** Puts a refused question back into the input. */
  _takeBack(turn, question, error, before) {
    turn.element.remove();
    if (before) this.turns.push(before);
    else if (this.message.value === "") this.message.value = question;
    if (this.turns.length === 0) this.log.append(this.welcome);
    if (!this.refused(error)) {
      this._showError(error.message);
      this.message.focus();
    }
  }

  _showError(text) {
    this.error.textContent = text;
    this.error.hidden = text === "";
    if (text) this.message.setAttribute("aria-invalid", "true");
    else this.message.removeAttribute("aria-invalid");
  }

  _settle() {
    const runs = Boolean(this.abort);
    const waited = document.activeElement === this.stop;
    this.stop.hidden = !runs;
    this.send.hidden = runs;
    this.again.disabled = runs || this.turns.length === 0;
    this.clear.disabled = runs || this.turns.length === 0;
    if (runs) this.stop.focus();
    else if (waited || document.activeElement === document.body) this.message.focus({ preventScroll: true });
  }
}
