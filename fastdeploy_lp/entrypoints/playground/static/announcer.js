// What screen readers are told of things that only change on the screen.

/** Speak a text when what is being said is over. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
