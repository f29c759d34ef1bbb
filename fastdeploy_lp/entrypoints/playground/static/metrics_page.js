// Live metrics of the server, read from /metrics.

import { Connection } from "./connection.js";
import { h } from "./element.js";
import { KeyField } from "./key_field.js";
import { Scrape } from "./scrape.js";
import { Server } from "./server.js";
import { sparkline } from "./sparkline.js";
import { explainTerms, term } from "./term.js";

const KEPT = 60;
const byId = (id) => document.getElementById(id);

const count = (value) => value.toFixed(0);
const tenth = (value) => value.toFixed(value < 100 ? 1 : 0);
const share = (value) => `${(value * 100).toFixed(1)} %`;
const milliseconds = (value) => `${(value * 1000).toFixed(1)} ms`;

// The value of each card, from a scrape and the previous one.
const CARDS = [
  { title: "Tokens generated a second", of: (now, before) => now.rate(before, "generation_tokens_total"), as: tenth },
  { title: "Prompt tokens a second", of: (now, before) => now.rate(before, "prompt_tokens_total"), as: tenth },
  { title: "Sequences running", of: (now) => now.value("num_requests_running"), as: count, most: (now) => now.value("max_batch_size") },
  { title: "Sequences waiting", of: (now) => now.value("num_requests_waiting"), as: count },
  { title: "KV cache in use", explained: "KV cache", of: (now) => now.value("gpu_cache_usage_perc"), as: share, most: () => 1 },
  { title: "Prompt tokens found in the prefix cache", explained: "prefix cache", of: (now) => now.value("hit_token_rate"), as: share, most: () => 1 },
  { title: "Time to first token", explained: "time to first token", of: (now, before) => now.mean(before, "time_to_first_token_seconds"), as: milliseconds },
  { title: "Time between tokens", explained: "time between tokens", of: (now, before) => now.mean(before, "inter_token_latency_seconds"), as: milliseconds },
];

class Series {
  constructor() {
    this.values = Array(KEPT).fill(undefined);
  }

  add(value) {
    this.values = [...this.values.slice(1), value];
  }
}

class MetricCard {
  constructor({ title, explained, of, as, most }) {
    Object.assign(this, { title, of, as, most });
    this.series = new Series();
    this.number = h("p", { class: "metric-value" }, "–");
    this.picture = sparkline([], `${title}: no values yet`);
    const heading = h("h2", { class: "small" }, explained ? term(explained, title) : title);
    this.element = h("section", { class: "metric", "aria-label": title }, heading, this.number, this.picture);
  }

  take(now, before) {
    const value = this.of(now, before);
    this.series.add(value);
    const shown = value === undefined ? "–" : this.as(value);
    this.number.textContent = shown;
    const drawn = sparkline(this.series.values, `${this.title}: the last minutes, now ${shown}`, this.most?.(now));
    this.picture.replaceWith(drawn);
    this.picture = drawn;
  }
}

/** The rows of the table, one per processor. */
class ProcessorTable {
  constructor(body) {
    this.body = body;
    this.series = new Map();
  }

  take(now, before) {
    this.body.replaceChildren(...now.processors.map((name) => this._row(name, now, before)));
    if (now.processors.length === 0) {
      this.body.append(h("tr", {}, h("td", { colSpan: 8 }, "This server declares no logits processors.")));
    }
  }

  _row(name, now, before) {
    const of = (metric) => now.rate(before, `logits_processor_${metric}_total`, name);
    const rows = of("rows");
    const seconds = of("seconds");
    if (!this.series.has(name)) this.series.set(name, new Series());
    this.series.get(name).add(seconds * 1000);
    const total = (metric) => count(now.value(`logits_processor_${metric}_total`, name));
    const state = now.value("logits_processor_quarantined", name) ? "quarantined" : "in service";
    const cells = [tenth(rows), rows > 0 ? `${((seconds / rows) * 1e6).toFixed(1)} µs` : "–", `${(seconds * 1000).toFixed(2)} ms`];
    const line = sparkline(this.series.get(name).values, `Cost of ${name} in the last minutes`);
    const others = [total("requests"), total("faults"), state];
    return h("tr", {}, h("th", { scope: "row" }, name), cells.map((each) => h("td", {}, each)), h("td", {}, line), others.map((each) => h("td", {}, each)));
  }
}

const server = new Server();
const cards = CARDS.map((card) => new MetricCard(card));
byId("cards").append(...cards.map((card) => card.element));
const table = new ProcessorTable(byId("processors"));
const key = new KeyField(server, watch);
const connection = new Connection(showStatus, key);
let before;
let paused = false;
let watched = 0;

function showStatus(text, kind) {
  byId("status").textContent = text;
  byId("status").dataset.kind = kind;
}

async function load() {
  try {
    return await server.metrics();
  } catch (error) {
    if (error.status === 404) error.message = "the metrics have a port of their own (--metrics-port), which this page cannot read";
    throw error;
  }
}

async function look() {
  const text = await connection.open(load);
  if (text === undefined) return;
  const now = new Scrape(text, performance.now());
  showStatus(paused ? "paused" : "live", paused ? "waiting" : "good");
  if (before) {
    for (const card of cards) card.take(now, before);
    table.take(now, before);
  }
  before = now;
}

/** Scrapes at the chosen interval; a later call replaces an earlier one. */
async function watch() {
  watched += 1;
  const mine = watched;
  while (mine === watched && !paused) {
    await look();
    await new Promise((resolve) => setTimeout(resolve, Number(byId("interval").value) * 1000));
  }
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  showStatus(paused ? "paused" : "live", paused ? "waiting" : "good");
  if (!paused) watch();
});
byId("interval").addEventListener("change", watch);
explainTerms();
watch();
