// Selection of token ids by text.

import { h, newId } from "./element.js";

/** A text input with a button for each token of the text; `picked(token)` is called for a selected one. */
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
    // Typed text is not a value of the form; only a selected token is.
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

  /** Returns the tokens of the text, as typed and after a space, which precedes most words of an answer. */
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

/** Returns a token's text with visible spaces, newlines and tabs. */
export function visible(text) {
  return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

function quoted(text) {
  return h("span", { class: "token-text" }, visible(text));
}

/** Returns a node that shows a token's text when the server has returned it. */
export function tokenName(server, id) {
  const node = h("span", { class: "token-text" });
  server.tokenText(id).then(
    (text) => (node.textContent = visible(text)),
    () => (node.textContent = "unknown"),
  );
  return node;
}
