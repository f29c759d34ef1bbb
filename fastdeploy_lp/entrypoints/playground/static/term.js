// Terms with an explanation, shown on hover, on focus and on touch.

import { h } from "./element.js";
import { GLOSSARY } from "./glossary.js";

const GAP = 6;
const LEAVE_MILLISECONDS = 150;

/** Returns a text that is explained as `name` in the glossary. */
export function term(name, text = name) {
  return h("span", { class: "term", tabIndex: 0, dataset: { term: name } }, text);
}

/** As `term`, for a text within a control, which is a tab stop already. */
export function termInControl(name, text = name) {
  return h("span", { class: "term", dataset: { term: name } }, text);
}

/** Leaves one tab stop for each explained term within an element, however often the term occurs. */
export function oneTabStopEach(element) {
  const seen = new Set();
  for (const each of element.querySelectorAll(".term")) {
    if (seen.has(each.dataset.term)) each.removeAttribute("tabindex");
    seen.add(each.dataset.term);
  }
}

/** Shows the explanation of the term under the pointer or with the focus; Escape hides it. */
export function explainTerms() {
  const tip = h("div", { id: "explanation", class: "explanation", role: "tooltip", popover: "manual" });
  document.body.append(tip);
  let anchor;
  let leaving;

  const hide = () => {
    clearTimeout(leaving);
    anchor?.removeAttribute("aria-describedby");
    anchor = undefined;
    tip.hidePopover();
  };
  const show = (found) => {
    clearTimeout(leaving);
    if (found === anchor) return;
    if (anchor) hide();
    anchor = found;
    tip.textContent = GLOSSARY[found.dataset.term];
    found.setAttribute("aria-describedby", tip.id);
    tip.showPopover();
    place(tip, found);
  };
  // The pointer may move onto the explanation without hiding it.
  const leave = () => {
    clearTimeout(leaving);
    leaving = setTimeout(hide, LEAVE_MILLISECONDS);
  };

  document.addEventListener("pointerover", ({ target }) => {
    const found = target.closest?.(".term");
    if (found) show(found);
    else if (target === tip) clearTimeout(leaving);
    else if (anchor && anchor !== document.activeElement) leave();
  });
  document.addEventListener("focusin", ({ target }) => (target.matches(".term") ? show(target) : anchor && hide()));
  document.addEventListener("focusout", ({ target }) => target === anchor && hide());
  document.addEventListener("scroll", () => anchor && hide(), { capture: true, passive: true });
  const onEscape = (event) => {
    if (event.key !== "Escape" || !anchor) return;
    event.stopPropagation();
    hide();
  };
  document.addEventListener("keydown", onEscape, { capture: true });
}

/** Puts the explanation below its term, or above it if there is no room, and within the window. */
function place(tip, anchor) {
  const at = anchor.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(GAP, Math.min(at.left, document.documentElement.clientWidth - width - GAP));
  const below = at.bottom + GAP;
  const top = below + height > innerHeight ? at.top - GAP - height : below;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.max(GAP, top)}px`;
}
