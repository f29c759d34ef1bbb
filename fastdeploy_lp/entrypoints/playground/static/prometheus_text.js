// A parser for the text format of Prometheus.

/** Returns the samples of a scrape: a map from names to lists of `{name, labels, value}`. */
export function samplesOf(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const sample = sampleOf(line);
    if (!sample) continue;
    if (!found.has(sample.name)) found.set(sample.name, []);
    found.get(sample.name).push(sample);
  }
  return found;
}

function sampleOf(line) {
  const parts = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$/.exec(line);
  if (!parts) return null;
  return { name: parts[1], labels: labelsOf(parts[2] ?? ""), value: numberOf(parts[3]) };
}

function labelsOf(text) {
  const found = {};
  for (const [, name, value] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
    found[name] = value.replace(/\\(.)/g, (_, sign) => (sign === "n" ? "\n" : sign));
  }
  return found;
}

function numberOf(text) {
  return { "+Inf": Infinity, "-Inf": -Infinity, NaN }[text] ?? Number(text);
}
