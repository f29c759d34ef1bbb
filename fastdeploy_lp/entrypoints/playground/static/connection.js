// The state of the server: unreachable, loading its model, requiring a key, or ready.

/** Retries until the server answers; `status(text, kind)` shows the state, `key` prompts for an API key. */
export class Connection {
  constructor(status, key) {
    this.status = status;
    this.key = key;
    this.attempt = 0;
  }

  /** Returns the result of `load()`; undefined if the server requires a key or a later call replaced this one. */
  async open(load) {
    this.attempt += 1;
    const mine = this.attempt;
    while (mine === this.attempt) {
      try {
        const found = await load();
        if (mine !== this.attempt) return undefined;
        this.key.accepted();
        return found;
      } catch (error) {
        if (mine !== this.attempt) return undefined;
        if (error.status === 401) {
          this.status("wants an API key", "bad");
          this.key.ask();
          return undefined;
        }
        const isGone = error.status === 0;
        this.status(error.code === "engine_starting" ? "loading the model …" : error.message, isGone ? "bad" : "waiting");
        await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 2) * 1000));
      }
    }
    return undefined;
  }
}
