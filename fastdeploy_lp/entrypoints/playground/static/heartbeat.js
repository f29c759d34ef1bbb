// Regular checks that a connected server still answers.

const INTERVAL_MILLISECONDS = 4000;

export class Heartbeat {
  /** `probe()` throws if the server is not ready; `lost()` is called once when that happens. */
  constructor(probe, lost) {
    this.probe = probe;
    this.lost = lost;
    document.addEventListener("visibilitychange", () => this.beat());
  }

  start() {
    this.stop();
    this.timer = setInterval(() => this.beat(), INTERVAL_MILLISECONDS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = undefined;
  }

  /** Checks now, unless the page is hidden or a check is running. */
  async beat() {
    const { timer } = this;
    if (timer === undefined || this.beating || document.hidden) return;
    this.beating = true;
    try {
      await this.probe();
    } catch {
      if (timer === this.timer) {
        this.stop();
        this.lost();
      }
    } finally {
      this.beating = false;
    }
  }
}
