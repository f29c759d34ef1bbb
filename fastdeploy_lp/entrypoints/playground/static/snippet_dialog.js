// A dialog with the next request as a program to copy.

import { announce } from "./announcer.js";
import { asCurl, asPython } from "./snippet.js";

const KINDS = { curl: asCurl, python: asPython };

export class SnippetDialog {
  /** `body()` returns the request, or null if it is invalid. */
  constructor(server, body) {
    this.server = server;
    this.body = body;
    this.dialog = document.getElementById("snippet");
    this.title = document.getElementById("snippet-title");
    this.code = document.getElementById("snippet-code");
    this.copied = document.getElementById("snippet-copied");
    for (const button of document.querySelectorAll("[data-snippet]")) {
      button.addEventListener("click", () => this.open(button.dataset.snippet, button.textContent));
    }
    document.getElementById("snippet-copy").addEventListener("click", () => this.copy());
    document.getElementById("snippet-close").addEventListener("click", () => this.dialog.close());
  }

  open(kind, title) {
    const body = this.body();
    if (!body) return;
    const url = this.server.root.href.replace(/\/$/, "");
    this.title.textContent = title;
    this.code.value = KINDS[kind](url, body, this.server.key !== "");
    this.code.rows = Math.min(24, this.code.value.split("\n").length + 1);
    this.copied.textContent = "";
    this.dialog.showModal();
    this.copy();
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.code.value);
      this.copied.textContent = "Copied.";
    } catch {
      // Without TLS, browsers allow the clipboard only to pages from localhost.
      this.code.focus();
      this.code.select();
      this.copied.textContent = "Selected; copy it with the keyboard.";
    }
    announce(this.copied.textContent);
  }
}
