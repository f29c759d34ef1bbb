// The light or dark theme, set before the first paint; a plain script, because modules run later.

(() => {
  const STORE = "fastdeploy_lp.theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem(STORE);
    } catch {
      return null;
    }
  };
  const current = () => chosen() ?? (system.matches ? "dark" : "light");

  function show() {
    document.documentElement.dataset.theme = current();
    const button = document.getElementById("theme");
    if (button) button.textContent = current() === "dark" ? "Light" : "Dark";
  }

  function turn() {
    try {
      localStorage.setItem(STORE, current() === "dark" ? "light" : "dark");
    } finally {
      show();
    }
  }

  show();
  system.addEventListener("change", show);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", turn);
    show();
  });
})();
