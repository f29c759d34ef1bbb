// Announcements to screen readers of changes that are otherwise only visible.

/** Announces a text after the current speech. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
