// One look at the metrics, and what happened since the one before.

import { samplesOf } from "./prometheus_text.js";

const PREFIX = "fastdeploy_lp:";
const PROCESSOR = "logits_processor_";

export class Scrape {
  /** `moment`: milliseconds on a clock that never goes back. */
  constructor(text, moment) {
    this.samples = samplesOf(text);
    this.moment = moment;
  }

  /** The sum over all labels, or over those of one processor. */
  value(name, processor) {
    const samples = this.samples.get(PREFIX + name) ?? [];
    const wanted = processor === undefined ? samples : samples.filter(({ labels }) => labels.processor === processor);
    return wanted.reduce((sum, { value }) => sum + value, 0);
  }

  /** Growth of a counter a second since an earlier scrape; a server that began anew counts from 0. */
  rate(before, name, processor) {
    const seconds = (this.moment - before.moment) / 1000;
    const now = this.value(name, processor);
    const then = before.value(name, processor);
    return seconds > 0 ? (now >= then ? now - then : now) / seconds : 0;
  }

  /** Mean of what a histogram took in since an earlier scrape; undefined if that was nothing. */
  mean(before, name) {
    const count = this.rate(before, `${name}_count`);
    return count > 0 ? this.rate(before, `${name}_sum`) / count : undefined;
  }

  get processors() {
    return (this.samples.get(`${PREFIX}${PROCESSOR}rows_total`) ?? []).map(({ labels }) => labels.processor);
  }
}
