// Whether the server is there, loading its model, or wanting a key.

/** Asks until it is answered; `status(text, kind)` tells of it, `key` asks for one. */
export class Connection {
  constructor(status, key) {
    this.status = status;
    this.key = key;
    this.attempt = 0;
  }

  /** What `load()` gives once the server answers; undefined if it wants a key, or if another call took over. */
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
        this.status(error.code === "engine_starting" ? "loading the model …" : error.message, "waiting");
        await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 2) * 1000));
      }
    }
    return undefined;
  }
}
