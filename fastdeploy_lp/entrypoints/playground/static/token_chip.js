// One token of an answer.

import { h } from "./element.js";
import { visible } from "./token_picker.js";
import { changeOf, confidenceLevelOf, confidenceOf, isFlipped, levelOf, percent, shadowsThatChange, takenBackText } from "./trace.js";

/** Returns the token's text as a button, colored by the change that the chain made, or else by the model's confidence. */
export function tokenChip(trace, text, place) {
  const change = changeOf(trace);
  const flipped = isFlipped(trace);
  const shadowed = shadowsThatChange(trace);
  const confidence = confidenceOf(trace);
  const said = [`token ${place + 1}`, visible(trace.token), `moved ${percent(change)}`];
  if (confidence !== undefined) said.push(`confidence ${percent(confidence)}`);
  if (flipped) said.push("flipped by the chain");
  if (shadowed.length) said.push(`would be another with ${shadowed.join(", ")}`);
  const classes = ["chip", `change-${levelOf(change)}`];
  if (confidence !== undefined) classes.push(`confidence-${confidenceLevelOf(confidence)}`);
  if (flipped) classes.push("flipped");
  if (shadowed.length) classes.push("shadowed");
  // A button element is one box, within which lines cannot break.
  const chip = h("span", { role: "button", class: classes.join(" "), tabIndex: -1 });
  chip.setAttribute("aria-label", said.join(", "));
  chip.title = `${said.slice(1).join(", ")}; click for details`;
  // Only the word is coloured: a space at the end of a line would be a stripe there.
  const space = text.length > 1 && text.startsWith(" ") ? " " : "";
  chip.append(space, h("span", { class: "ink" }, ...shown(text.slice(space.length))));
  return chip;
}

/** Returns the text that a processor took back, struck through. */
export function takenBack(stage) {
  const text = takenBackText(stage);
  return h("s", { class: "taken-back", title: `${stage.name} took this back` }, ...shown(text));
}

/** Returns the text, with a visible sign and a line break for each newline. */
function shown(text) {
  if (text === "") return [h("span", { class: "no-text" }, "·")];
  return text.split("\n").flatMap((line, index) => (index ? ["↵", h("br"), line] : [line]));
}
