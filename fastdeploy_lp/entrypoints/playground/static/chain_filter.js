// The search field above the cards of a long chain.

import { h } from "./element.js";

// A shorter list can be read at a glance.
const FEWEST = 6;

export class ChainFilter {
  /** `changed()` is called when the text changes. */
  constructor(place, changed) {
    this.input = h("input", { id: "chain-filter", type: "search", autocomplete: "off", placeholder: "a name, an argument, a purpose" });
    this.found = h("p", { class: "small", role: "status" });
    this.element = h("div", { class: "chain-filter", hidden: true }, h("label", { for: this.input.id, class: "field-label" }, "Filter"), this.input, this.found);
    this.input.addEventListener("input", changed);
    // The first Escape clears the text, as browsers do it for a field of this type; some do not.
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.input.value === "") return;
      event.preventDefault();
      this.input.value = "";
      changed();
    });
    place.before(this.element);
  }

  /** Hides inactive cards that do not match. The card with the focus stays, which would be lost with it. */
  apply(cards) {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const card of cards) {
      const stays = card.on || card.element.contains(document.activeElement) || card.matches(words);
      card.element.hidden = !stays;
    }
    this.element.hidden = cards.length < FEWEST;
    const active = cards.filter((card) => card.on).length;
    const inactive = cards.filter((card) => !card.on && !card.element.hidden).length;
    const others = cards.length - active;
    this.found.textContent = words.length ? `${active} active, ${inactive} of ${others} others match` : `${active} active, ${others} others`;
  }
}
