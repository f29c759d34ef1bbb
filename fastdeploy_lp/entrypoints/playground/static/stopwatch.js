// The speed at which an answer arrives.

export class Stopwatch {
  /** `now()` returns milliseconds on a monotonic clock. */
  constructor(now = () => performance.now()) {
    this.now = now;
    this.began = now();
    this.tokens = 0;
  }

  /** Notes that `tokens` tokens have arrived in total. */
  count(tokens) {
    if (tokens <= this.tokens) return;
    const now = this.now();
    this.first ??= { moment: now, tokens };
    this.tokens = tokens;
    this.last = now;
  }

  /** Tokens per second after the first ones; undefined until more than one chunk has arrived. */
  get tokensPerSecond() {
    if (!this.first || this.last === this.first.moment) return undefined;
    return ((this.tokens - this.first.tokens) * 1000) / (this.last - this.first.moment);
  }

  /** Seconds until the first token; undefined until it has arrived. */
  get secondsToFirst() {
    return this.first && (this.first.moment - this.began) / 1000;
  }
}
