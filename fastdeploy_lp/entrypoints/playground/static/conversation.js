// The chat: past turns, the running answer, and the next message.

import { announce } from "./announcer.js";
import { Answer } from "./answer.js";
import { ServerError } from "./server.js";
import { Turn } from "./turn.js";

const SEEDS = 2 ** 31;
const NEAR = 60;
// Counts in each chunk show the speed while the answer arrives.
const USAGE = { include_usage: true, continuous_usage_stats: true };

export class Conversation {
  /**
   * `request()` returns a body without messages, or null if it is invalid; `compares()` is true for two answers per
   * question; `active()` returns the active processors; `system()` the system message; `refused(error)` shows an error at its field and returns true if
   * there is one.
   */
  constructor({ server, inspector, request, compares, active, system, refused }) {
    Object.assign(this, { server, inspector, request, compares, active, system, refused });
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
    await this._run(new Turn(question), body);
  }

  /** Asks the last question again, with the current settings, and keeps the answer to compare the new one with. */
  async runAgain() {
    const body = this.abort || this.turns.length === 0 ? null : this.request();
    if (!body) return;
    this.inspector.close();
    await this._run(this.turns.pop(), body);
  }

  reset() {
    this.inspector.close();
    this.turns = [];
    this.log.replaceChildren(this.welcome);
    this._settle();
    this.message.focus();
  }

  /** Asks a turn's question; the chat is unchanged if the server refuses it. */
  async _run(turn, body) {
    const { question } = turn;
    const seed = this._seed(turn, body);
    const answers = this._answers(seed);
    turn.begin(answers);
    this._showError("");
    this.abort = new AbortController();
    this._settle();
    this.welcome.remove();
    this.log.append(turn.element);
    turn.element.scrollIntoView({ block: "nearest" });
    const common = { messages: this.messages(question), ...body, seed, stream: true, stream_options: USAGE };
    const bodies = [common, { ...common, logits_processors: [] }];
    const refusals = await Promise.all(answers.map((answer, index) => this._fill(answer, bodies[index])));
    this.abort = undefined;
    const refusal = refusals.find(Boolean);
    if (refusal) this._takeBack(turn, refusal);
    else this._keep(turn, body);
    this._settle();
  }

  /** Returns the request's seed, or a drawn one. Other settings are compared with the former answer's draw. */
  _seed(turn, body) {
    // -1 draws a seed too; answers side by side need the same one.
    if ((body.seed ?? -1) !== -1) return body.seed;
    const isChanged = turn.asked !== undefined && turn.asked !== JSON.stringify(body);
    return isChanged ? turn.answer.seed : Math.floor(Math.random() * SEEDS);
  }

  _answers(seed) {
    const open = (answer, place) => this.inspector.open(answer, place);
    const active = this.active();
    const kept = active.filter(({ mandatory }) => mandatory);
    const kinds = this.compares() ? [["With the chain", active], ["Chain off", kept]] : [["Answer", active]];
    const answers = kinds.map(([title, chain]) => new Answer(title, chain.map(({ label }) => label), open));
    for (const answer of answers) answer.seed = seed;
    return answers;
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

  _keep(turn, body) {
    turn.asked = JSON.stringify(body);
    this.turns.push(turn);
    turn.compare();
    announce(`The answer is complete: ${turn.answer.text}`);
  }

  /** Removes a refused run; the question of a first run goes back into the input. */
  _takeBack(turn, error) {
    turn.undo();
    if (turn.runs.length > 0) {
      this.turns.push(turn);
    } else {
      turn.element.remove();
      if (this.message.value === "") this.message.value = turn.question;
    }
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
