// The API key, for servers that require one.

export class KeyField {
  /** `changed()` is called when the key changes. */
  constructor(server, changed) {
    this.server = server;
    this.input = document.getElementById("key");
    this.error = document.getElementById("key-error");
    this.panel = this.input.closest("details");
    this.input.value = server.key;
    document.getElementById("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this._use(changed);
    });
    this.input.addEventListener("change", () => this._use(changed));
  }

  /** Prompts for a missing or unknown key. */
  ask() {
    const missing = this.server.key === "";
    this.error.textContent = missing ? "this server wants an API key" : "the server does not know this key";
    this.error.hidden = false;
    this.input.setAttribute("aria-invalid", "true");
    if (this.panel) this.panel.open = true;
    this.input.focus();
  }

  accepted() {
    this.error.hidden = true;
    this.input.removeAttribute("aria-invalid");
  }

  _use(changed) {
    if (this.input.value.trim() === this.server.key) return;
    this.server.key = this.input.value;
    this.accepted();
    changed();
  }
}
