// Applies the color scheme that the user chose, before anything is painted.
(() => {
  const chosen = localStorage.getItem("isopod-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
