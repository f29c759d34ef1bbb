// What a trace says of one token.

const LEVELS = [0.01, 0.1, 0.3, 0.6];

/** As much probability as the processors moved, one after the other: 0 to 1. */
export function changeOf(trace) {
  const moved = processorStages(trace).map((stage) => stage.mass_moved ?? 0);
  return Math.min(1, moved.reduce((sum, each) => sum + each, 0));
}

/** 0 to 4: how loudly a change is shown. */
export function levelOf(change) {
  return LEVELS.filter((level) => change >= level).length;
}

/** Whether the chain made another token the most likely one. */
export function isFlipped(trace) {
  const ran = trace.stages.filter((stage) => stage.top.length > 0);
  const first = ran.findIndex((stage) => stage.kind === "processor");
  const last = ran.findLastIndex((stage) => stage.kind === "processor");
  return first > 0 && ran[first - 1].top[0].token_id !== ran[last].top[0].token_id;
}

/** The names of the processors in shadow that would have made another token of it. */
export function shadowsThatChange(trace) {
  return Object.entries(trace.shadows ?? {}).filter(([, shadow]) => shadow.changed).map(([name]) => name);
}

function processorStages(trace) {
  return trace.stages.filter((stage) => stage.kind === "processor");
}

/** A share of 1 as a percentage that is short and never says 0 or 100 of something in between. */
export function percent(share) {
  const value = share * 100;
  if (value === 0) return "0 %";
  if (value > 0 && value < 0.01) return "<0.01 %";
  if (value < 100 && value > 99.99) return ">99.99 %";
  return `${value.toFixed(value < 1 ? 2 : 1)} %`;
}

/** Reads tokens in order, and says which text each one completes. */
export class TokenTexts {
  constructor() {
    this.decoder = new TextDecoder();
  }

  next(trace) {
    return this.decoder.decode(new Uint8Array(trace.bytes), { stream: true });
  }
}
