// The chain: active processors in the request's order, then the other declared ones in the server's order.

import { announce } from "./announcer.js";
import { ChainFilter } from "./chain_filter.js";
import { h } from "./element.js";
import { ProcessorCard } from "./processor_card.js";

export class ChainPanel {
  /** `removed(card)` is called when the user deletes an upload. */
  constructor(list, server, removed) {
    this.list = list;
    this.server = server;
    this.removed = removed;
    this.cards = [];
    this.filter = new ChainFilter(list, () => this.filter.apply(this.cards));
  }

  /** Creates a card for each declared processor, and keeps the settings of former cards. */
  show(infos) {
    const { settings } = this;
    const handlers = { used: (card) => this._used(card), removed: this.removed };
    this.cards = infos.map((info) => new ProcessorCard(info, this.server, handlers));
    for (const card of this.cards) this._watch(card);
    if (this.cards.length === 1) this.cards[0].open();
    this.settings = settings;
    if (this.cards.length === 0) {
      const text = "This server declares no logits processors; start it with --logits-processors.";
      this.list.replaceChildren(h("li", { class: "hint" }, text));
    }
  }

  /** The entries of a request: the processors to name in it, in order. */
  get entries() {
    return this._named().map((card) => card.entry);
  }

  /** Turns a processor on, and shows its form. */
  use(name) {
    const card = this.cards.find((each) => each.name === name);
    card?.open();
    card?.use(true);
  }

  /** The processors that take part in a request, in order. */
  get active() {
    return this.cards.filter((card) => card.on);
  }

  get settings() {
    return this.cards.map((card) => card.settings);
  }

  /** Ignores settings of undeclared processors; turns off processors without settings. */
  set settings(settings) {
    const named = new Map(this.cards.map((card) => [card.name, card]));
    const given = new Map(settings.map((each) => [each.name, each]));
    for (const card of this.cards) card.settings = given.get(card.name) ?? { on: false };
    const first = settings.map(({ name }) => named.get(name)).filter(Boolean);
    this.cards = [...first, ...this.cards.filter((card) => !first.includes(card))];
    this._place();
  }

  check() {
    return this._named()
      .map((card) => card.check())
      .every(Boolean);
  }

  /** Shows an error at a path below `logits_processors`; false if no card matches it. */
  showError([which, ...rest], message) {
    const card = this._named()[Number(which)] ?? this.cards.find((each) => each.name === which);
    if (!card) return false;
    card.showError(rest[0] === "params" ? rest.slice(1) : rest, message);
    card.element.scrollIntoView({ block: "nearest" });
    return true;
  }

  clearErrors() {
    for (const card of this.cards) card.clearErrors();
  }

  /** Sets a token's bias in the first processor with a token map; returns its name, or undefined without one. */
  bias(token, value) {
    const card = this.cards.find((each) => each.form.tokenMap);
    if (!card) return undefined;
    card.form.tokenMap.put(String(token), value);
    card.open();
    this._reveal(card);
    return card.name;
  }

  /** Scrolls the column to a card. A page in one column stays where it is: at the token. */
  _reveal(card) {
    const scroller = scrollerOf(this.list);
    if (scroller !== document.scrollingElement) card.element.scrollIntoView({ block: "start" });
  }

  get canBias() {
    return this.cards.some((card) => card.form.tokenMap);
  }

  _named() {
    return this.cards.filter((card) => card.named);
  }

  /** Returns a card's section. Cards of a section may change places: no mandatory card is between them. */
  _section(card) {
    const before = this.cards.filter((each) => each.mandatory && each.usual < card.usual).length;
    return 2 * before + Number(card.mandatory);
  }

  _mayMove(card, step) {
    const neighbour = this.cards[this.cards.indexOf(card) + step];
    return card.on && Boolean(neighbour?.on) && this._section(neighbour) === this._section(card);
  }

  /** Moves a card that was turned on among the active ones, by the server's order, or back among the others. */
  _used(card) {
    const others = this.cards.filter((each) => each !== card);
    const at = others.findIndex((each) => each.usual > card.usual || !each.on);
    this.cards = at < 0 ? [...others, card] : [...others.slice(0, at), card, ...others.slice(at)];
    const { top } = card.element.getBoundingClientRect();
    this._place();
    scrollerOf(this.list).scrollTop += card.element.getBoundingClientRect().top - top;
    const number = this.active.indexOf(card) + 1;
    announce(number ? `${card.name} is number ${number} of ${this.active.length} active processors` : `${card.name} is not active`);
  }

  _watch(card) {
    card.handle.addEventListener("keydown", (event) => {
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      this._move(card, step);
      card.handle.focus();
    });
    card.up.addEventListener("click", () => this._moveAndKeep(card, -1, card.up, card.down));
    card.down.addEventListener("click", () => this._moveAndKeep(card, 1, card.down, card.up));
    card.handle.addEventListener("pointerdown", (event) => this._drag(card, event));
  }

  _moveAndKeep(card, step, button, other) {
    this._move(card, step);
    (button.disabled ? other : button).focus();
  }

  _move(card, step) {
    const from = this.cards.indexOf(card);
    const to = from + step;
    if (!this._mayMove(card, step)) return;
    this.cards.splice(from, 1);
    this.cards.splice(to, 0, card);
    this._place();
    announce(`${card.name} is now number ${to + 1} of ${this.active.length}`);
  }

  _drag(card, event) {
    if (event.button !== 0 || card.mandatory) return;
    event.preventDefault();
    card.handle.focus();
    card.handle.setPointerCapture(event.pointerId);
    card.element.classList.add("dragged");
    const follow = ({ clientY }) => {
      const others = this.active.filter((each) => each !== card);
      const to = others.filter(({ element }) => clientY > middleOf(element)).length;
      const step = to - this.cards.indexOf(card);
      if (step !== 0) this._move(card, step);
    };
    const stop = () => {
      card.element.classList.remove("dragged");
      card.handle.removeEventListener("pointermove", follow);
      for (const kind of ["pointerup", "pointercancel"]) card.handle.removeEventListener(kind, stop);
    };
    card.handle.addEventListener("pointermove", follow);
    for (const kind of ["pointerup", "pointercancel"]) card.handle.addEventListener(kind, stop);
  }

  /** Sorts the cards. Both sorts are stable: they keep the order of the active ones within a section. */
  _sort() {
    const rest = this.cards.filter((card) => !card.on).sort((one, other) => one.usual - other.usual);
    const active = this.active.sort((one, other) => this._section(one) - this._section(other));
    this.cards = [...active, ...rest];
  }

  /** Applies the order of the cards. Never removes the card with the focus, which it would lose, with a captured pointer. */
  _place() {
    this._sort();
    this.cards.forEach((card, index) => {
      card.up.disabled = !this._mayMove(card, -1);
      card.down.disabled = !this._mayMove(card, 1);
      card.place.textContent = String(index + 1);
      for (const part of [card.handle, card.place, card.moves]) part.hidden = !card.on;
    });
    this.filter.apply(this.cards);
    const held = this.cards.find(({ element }) => element.contains(document.activeElement))?.element;
    if (!held?.isConnected) {
      this.list.replaceChildren(...this.cards.map((card) => card.element));
      return;
    }
    const order = this.cards.map((card) => card.element);
    const at = order.indexOf(held);
    held.before(...order.slice(0, at));
    held.after(...order.slice(at + 1));
  }
}

/** Returns the element that scrolls a list: a column of the page, or the page. */
function scrollerOf(list) {
  const column = list.closest(".settings");
  return getComputedStyle(column).overflowY === "auto" ? column : document.scrollingElement;
}

function middleOf(element) {
  const { top, height } = element.getBoundingClientRect();
  return top + height / 2;
}
