// Runs before the first paint, so that a page never flashes in the other theme.
(() => {
  "use strict";
  try {
    const theme = localStorage.getItem("greenserve-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage is refused: the system's preference holds.
  }
})();
