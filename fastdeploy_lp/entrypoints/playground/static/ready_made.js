// Presets that come with the page, each for one builtin processor.

const READY_MADE = [
  { title: "Begin the answer with a phrase", spec: "ForcedSequenceLogitsProcessor", params: { forced_sequence: "Well, to be honest," } },
  { title: "Answer yes or no", spec: "MultipleChoiceLogitsProcessor", params: { choices: ["Yes", "No"] } },
  { title: "Repeat fewer words", spec: "RepetitionPenaltyLogitsProcessor", params: { repetition_penalty: 1.3 } },
  { title: "Never repeat three tokens in a row", spec: "NoRepeatNGramLogitsProcessor", params: { no_repeat_ngram_size: 3 } },
  { title: "End with a phrase", spec: "ForceLastPhraseLogitsProcessor", params: { last_phrase: " That is all." } },
  { title: "Drop unlikely tokens (temperature 1)", spec: "MinPLogitsProcessor", params: { min_p: 0.1 }, fields: { temperature: 1 } },
  { title: "Avoid the obvious (temperature 1)", spec: "XTCLogitsProcessor", params: { xtc_probability: 0.5, xtc_threshold: 0.1 }, fields: { temperature: 1 } },
];

/** Returns `{title, chain, fields}` for each of these presets whose processor is among the declared ones. */
export function readyMade(infos) {
  return READY_MADE.flatMap(({ title, spec, params, fields }) => {
    const info = infos.find((each) => each.source === "builtin" && each.spec === spec && !each.always_in_shadow);
    return info ? [{ title, chain: [{ name: info.name, on: true, params }], fields: fields ?? {} }] : [];
  });
}
