// Draws the small figures that stand in a page's HTML (`data-figure`), again when a live list has new values for them.
(() => {
  "use strict";
  const script = document.querySelector("script[data-plotly]");
  const library = window.Plotly ? Promise.resolve() : new Promise((resolve) => script.addEventListener("load", resolve));
  const config = { staticPlot: true, responsive: true };
  async function draw(place) {
    await library;
    const { data, layout } = JSON.parse(place.dataset.figure);
    await Plotly.react(place, data, layout, config);
  }
  const drawIn = (root) => root.querySelectorAll("[data-figure]").forEach(draw);
  drawIn(document);
  new MutationObserver((changes) => {
    for (const change of changes) {
      if (change.type === "attributes") draw(change.target);
      else for (const node of change.addedNodes) {
        if (node.matches?.("[data-figure]")) draw(node);
        else if (node.matches?.("li")) drawIn(node);
      }
    }
  }).observe(document.querySelector("main"), { subtree: true, childList: true, attributeFilter: ["data-figure"] });
})();
