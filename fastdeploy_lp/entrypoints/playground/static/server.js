// The API of the server that sent this page.

import { eventsOf } from "./event_stream.js";

const KEY = "fastdeploy_lp.api_key";
const PROCESSORS = "v1/logits_processors";
const DEFAULT_RETRY_SECONDS = 1;
const SILENCE_MILLISECONDS = 8000;

/** A failure reported by the server; `status` is 0 if the server is unreachable. */
export class ServerError extends Error {
  constructor(status, info, retryAfter = null) {
    super(info.message);
    this.status = status;
    this.param = info.param ?? null;
    this.code = info.code ?? null;
    this.retryAfter = retryAfter;
  }
}

/** The API; dispatches the event "unreachable" when a request finds no server. */
export class Server extends EventTarget {
  constructor() {
    super();
    // The page is one level below the server's root, also under a proxy's prefix.
    this.root = new URL("../", import.meta.url);
    // In this tab only: the browser's next user could read a key stored for longer.
    this._key = sessionStorage.getItem(KEY) ?? "";
    this._texts = new Map();
  }

  get key() {
    return this._key;
  }

  set key(key) {
    this._key = key.trim();
    if (this._key) sessionStorage.setItem(KEY, this._key);
    else sessionStorage.removeItem(KEY);
  }

  url(path) {
    return new URL(path, this.root).href;
  }

  /** Throws if the server is gone, is silent for too long, or takes no requests now. */
  async health() {
    await this._request("health", { signal: AbortSignal.timeout(SILENCE_MILLISECONDS) });
  }

  /** Returns the processors that the client may use, and whether it may upload others. */
  async processors() {
    const { data, takes_uploads } = await this._json(PROCESSORS);
    return { declared: data, takesUploads: takes_uploads };
  }

  /** Stores a WebAssembly module, a File; returns its description. */
  async upload(name, module) {
    const form = new FormData();
    form.append("name", name);
    form.append("module", module);
    return this._json(PROCESSORS, { form });
  }

  async deleteUpload(name) {
    await this._request(`${PROCESSORS}/${name}`, { method: "DELETE" });
  }

  async model() {
    return (await this._json("v1/models")).data[0];
  }

  /** Returns the OpenAPI description, whose bodies declare the sampling fields. */
  async schema() {
    return this._json("openapi.json");
  }

  async metrics() {
    return (await this._request("metrics")).text();
  }

  /** Returns the token ids of a text, each with its text. */
  async tokenize(text) {
    const body = { prompt: text, add_special_tokens: false, return_token_strs: true };
    const found = await this._json("tokenize", { body });
    return found.tokens.map((id, index) => ({ id, text: found.token_strs[index] }));
  }

  /** Returns the text of a token. */
  async tokenText(id) {
    if (!this._texts.has(id)) {
      this._texts.set(id, (await this._json("detokenize", { body: { tokens: [id] } })).prompt);
    }
    return this._texts.get(id);
  }

  /** Yields the chunks of a streamed chat completion; throws ServerError, also for failures during the stream. */
  async *chat(body, signal) {
    const response = await this._request("v1/chat/completions", { body, signal });
    try {
      for await (const chunk of eventsOf(response)) {
        if (chunk.error) throw new ServerError(500, chunk.error);
        yield chunk;
      }
    } catch (error) {
      if (error instanceof TypeError) throw this._unreachable();
      throw error;
    }
  }

  async _json(path, options) {
    return (await this._request(path, options)).json();
  }

  async _request(path, { body, form, signal, method = body || form ? "POST" : "GET" } = {}) {
    const headers = {};
    if (this._key) headers.Authorization = `Bearer ${this._key}`;
    if (body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(this.url(path), {
        method,
        headers,
        body: form ?? (body && JSON.stringify(body)),
        signal,
        cache: "no-store",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw this._unreachable();
    }
    if (!response.ok) throw await failureOf(response);
    return response;
  }

  _unreachable() {
    this.dispatchEvent(new Event("unreachable"));
    return new ServerError(0, { message: "The server cannot be reached. Is it still running?" });
  }
}

async function failureOf(response) {
  const wait = Number(response.headers.get("Retry-After")) || DEFAULT_RETRY_SECONDS;
  const body = await response.json().catch(() => null);
  return new ServerError(response.status, body?.error ?? { message: `${response.status} ${response.statusText}` }, wait);
}
