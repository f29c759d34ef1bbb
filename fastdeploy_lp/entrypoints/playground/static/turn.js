// One question with the answers of its last run, and of earlier runs to compare them with.

import { h } from "./element.js";

export class Turn {
  constructor(question) {
    this.question = question;
    this.runs = [];
    this.current = h("div", { class: "answers" });
    this.earlier = h("div", { class: "answers several" });
    this.summary = h("summary", {});
    this.folded = h("details", { class: "earlier", hidden: true }, this.summary, this.earlier);
    const asked = h("div", { class: "question" }, h("h3", { class: "visually-hidden" }, "You"), h("p", {}, question));
    this.element = h("div", { class: "turn" }, asked, this.folded, this.current);
  }

  /** The answer that the chat continues with. */
  get answer() {
    return this.runs.at(-1)[0];
  }

  /** The answer of the run before the last one; undefined for a first run. */
  get former() {
    return this.runs.at(-2)?.[0];
  }

  /** Shows the answers of another run beside the first answer of the run before. */
  begin(answers) {
    this.runs.push(answers);
    this._show();
  }

  /** Removes the last run. */
  undo() {
    this.runs.pop();
    this._show();
  }

  /** Marks where answers begin to differ: the chain's from the one without, and the last run's from the one before. */
  compare() {
    const [answer, ...others] = this.runs.at(-1);
    const compared = [this.former, ...others].filter(Boolean);
    for (const each of [answer, ...compared]) each.forgetDifferences();
    for (const each of compared) answer.compareWith(each);
    if (this.former) answer.showDifference();
  }

  _show() {
    const last = this.runs.at(-1) ?? [];
    const shown = [this.former, ...last].filter(Boolean);
    const folded = this.runs.slice(0, -1).flat().filter((answer) => !shown.includes(answer));
    this.runs.forEach((answers, index) => answers.forEach((answer) => (answer.run = this.runs.length > 1 ? index + 1 : undefined)));
    this.runs.flat().forEach((answer) => answer.element.classList.toggle("former", !last.includes(answer)));
    this.current.className = shown.length > 1 ? "answers several" : "answers";
    this.current.replaceChildren(...shown.map((answer) => answer.element));
    this.earlier.replaceChildren(...folded.map((answer) => answer.element));
    this.folded.hidden = folded.length === 0;
    this.summary.textContent = folded.length === 1 ? "1 earlier answer" : `${folded.length} earlier answers`;
  }
}
