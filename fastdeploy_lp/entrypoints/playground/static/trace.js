// Properties of one token, read from its trace.

const LEVELS = [0.01, 0.1, 0.3, 0.6];
const CONFIDENCES = [0.2, 0.5, 0.9];

/** Returns the sum of the probability mass that each processor moved, at most 1. */
export function changeOf(trace) {
  const moved = processorStages(trace).map((stage) => stage.mass_moved ?? 0);
  return Math.min(1, moved.reduce((sum, each) => sum + each, 0));
}

/** Returns the level at which to show a change: 0 to 4. */
export function levelOf(change) {
  return LEVELS.filter((level) => change >= level).length;
}

/** Returns the probability that the model gave to the token; undefined if the trace does not have it. */
export function confidenceOf(trace) {
  return trace.stages.find((stage) => stage.kind === "model")?.sampled?.probability;
}

/** Returns the level at which to show a confidence: 0 for an uncertain token to 3 for a certain one. */
export function confidenceLevelOf(confidence) {
  return CONFIDENCES.filter((level) => confidence >= level).length;
}

/** True if the chain changed the most likely token. */
export function isFlipped(trace) {
  const ran = trace.stages.filter((stage) => stage.top.length > 0);
  const first = ran.findIndex((stage) => stage.kind === "processor");
  const last = ran.findLastIndex((stage) => stage.kind === "processor");
  return first > 0 && ran[first - 1].top[0].token_id !== ran[last].top[0].token_id;
}

/** Returns the stages of processors that took tokens back to the token's place, before it. */
export function rewindsOf(trace) {
  return trace.stages.filter((stage) => stage.taken_back);
}

/** Returns the text of taken-back tokens. */
export function takenBackText(stage) {
  return new TextDecoder().decode(new Uint8Array(stage.taken_back.flatMap((token) => token.bytes)));
}

/** Returns the names of processors in shadow that would have changed the token. */
export function shadowsThatChange(trace) {
  return Object.entries(trace.shadows ?? {}).filter(([, shadow]) => shadow.changed).map(([name]) => name);
}

function processorStages(trace) {
  return trace.stages.filter((stage) => stage.kind === "processor");
}

/** Returns a share as a short percentage, which shows 0 % only for exactly 0 and 100 % only for exactly 1. */
export function percent(share) {
  const value = share * 100;
  if (value === 0) return "0 %";
  if (value > 0 && value < 0.01) return "<0.01 %";
  if (value < 100 && value > 99.99) return ">99.99 %";
  return `${value.toFixed(value < 1 ? 2 : 1)} %`;
}

/** Reads tokens in order and returns the text that each one completes. */
export class TokenTexts {
  constructor() {
    this.decoder = new TextDecoder();
  }

  next(trace) {
    return this.decoder.decode(new Uint8Array(trace.bytes), { stream: true });
  }
}
