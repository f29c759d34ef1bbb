// From words to token ids.

import { h, newId } from "./element.js";

/** A field to type a text into, and a button for each of its tokens; `picked(token)` gets the chosen ones. */
export class TokenPicker {
  constructor(server, picked) {
    this.server = server;
    this.picked = picked;
    const id = newId("picker");
    this.input = h("input", { id, type: "text", autocomplete: "off", placeholder: "a word, or a token id" });
    this.found = h("div", { class: "token-choices", "aria-live": "polite" });
    this.element = h(
      "div",
      { class: "token-picker" },
      h("label", { for: id, class: "small" }, "Add a token"),
      h("div", { class: "row" }, this.input, h("button", { type: "button", onclick: () => this.look() }, "Find")),
      this.found,
    );
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.look();
    });
    // Not a value yet: only what is picked is one.
    for (const kind of ["input", "change"]) this.input.addEventListener(kind, (event) => event.stopPropagation());
  }

  async look() {
    const text = this.input.value;
    if (text === "") return;
    this.found.replaceChildren(h("span", { class: "small" }, "Looking …"));
    try {
      const tokens = await this._tokens(text);
      this.found.replaceChildren(...tokens.map((token) => this._button(token)));
    } catch (error) {
      this.found.replaceChildren(h("p", { class: "error" }, error.message));
    }
  }

  /** Those of the text as it is and behind a space, where most words of an answer stand. */
  async _tokens(text) {
    if (/^\d+$/.test(text)) return [{ id: Number(text), text: await this.server.tokenText(Number(text)) }];
    const spaced = text.startsWith(" ") ? [] : await this.server.tokenize(` ${text}`);
    const found = [...spaced, ...(await this.server.tokenize(text))];
    return [...new Map(found.map((token) => [token.id, token])).values()];
  }

  _button(token) {
    const choose = () => {
      this.input.value = "";
      this.found.replaceChildren();
      this.input.focus();
      this.picked(token);
    };
    return h("button", { type: "button", class: "token-choice", onclick: choose }, quoted(token.text), ` ${token.id}`);
  }
}

/** A token's text with its spaces and line ends visible. */
export function visible(text) {
  return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

function quoted(text) {
  return h("span", { class: "token-text" }, visible(text));
}

/** The text of a token id beside its number, when the server has told it. */
export function tokenName(server, id) {
  const node = h("span", { class: "token-text" });
  server.tokenText(id).then(
    (text) => (node.textContent = visible(text)),
    () => (node.textContent = "unknown"),
  );
  return node;
}
