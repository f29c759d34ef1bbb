// One scrape of the metrics, and the changes since an earlier one.

import { samplesOf } from "./prometheus_text.js";

const PREFIX = "fastdeploy_lp:";
const PROCESSOR = "logits_processor_";

export class Scrape {
  /** `moment`: milliseconds on a monotonic clock. */
  constructor(text, moment) {
    this.samples = samplesOf(text);
    this.moment = moment;
  }

  /** Returns the sum over all labels, or over one processor's. */
  value(name, processor) {
    const samples = this.samples.get(PREFIX + name) ?? [];
    const wanted = processor === undefined ? samples : samples.filter(({ labels }) => labels.processor === processor);
    return wanted.reduce((sum, { value }) => sum + value, 0);
  }

  /** Returns a counter's growth per second since an earlier scrape; a restarted server counts from 0. */
  rate(before, name, processor) {
    const seconds = (this.moment - before.moment) / 1000;
    const now = this.value(name, processor);
    const then = before.value(name, processor);
    return seconds > 0 ? (now >= then ? now - then : now) / seconds : 0;
  }

  /** Returns the mean of a histogram's observations since an earlier scrape; undefined without any. */
  mean(before, name) {
    const count = this.rate(before, `${name}_count`);
    return count > 0 ? this.rate(before, `${name}_sum`) / count : undefined;
  }

  get processors() {
    return (this.samples.get(`${PREFIX}${PROCESSOR}rows_total`) ?? []).map(({ labels }) => labels.processor);
  }
}
