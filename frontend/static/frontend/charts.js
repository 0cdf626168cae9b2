// Draws the four charts and keeps them fresh: one fetch for all, one zoom for all, nothing while nobody looks.
(() => {
  "use strict";
  const root = document.getElementById("charts");
  if (!root || !window.Plotly) return;
  const panels = [...root.querySelectorAll("[data-chart]")];
  const resetButton = document.querySelector("[data-reset-zoom]");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displayModeBar: false, doubleClick: false, showTips: false };
  let figures = null;
  let zoom = null; // [from, to] on the shared axis; null: the whole range
  let timer = 0;
  let drawing = false;
  let dragging = false;

  const theme = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");

  function plotOf(panel) { return panel.querySelector(".plot"); }

  async function draw(panel) {
    const figure = figures[panel.dataset.chart];
    const plot = plotOf(panel);
    const { question, source, until, empty, stale, stale_what: what } = figure.meta;
    panel.querySelector("[data-question]").textContent = question;
    const fresh = until ? `${stale ? `Stale${what ? ` (${what})` : ""} since` : "Until"} ${until.slice(11)}. ` : "";
    panel.querySelector("[data-source]").textContent = `${fresh}Source: ${source}`;
    panel.classList.toggle("stale", stale);
    panel.querySelector(".empty").hidden = !empty;
    plot.hidden = empty;
    plot.setAttribute("aria-label", `${question} ${source}`);
    if (empty) return;
    const layout = structuredClone(figure.layout);
    layout.xaxis.uirevision = Date.now(); // the zoom is kept here, for all charts at once
    if (zoom) layout.xaxis.range = zoom;
    if (plot.clientWidth < 480) { layout.xaxis.nticks = 4; layout.margin.l = 48; }
    const isNew = !plot.classList.contains("js-plotly-plot");
    await Plotly.react(plot, figure.data, layout, config);
    if (isNew) listen(plot);
  }

  function listen(plot) {
    plot.on("plotly_relayout", (change) => {
      if (drawing || !("xaxis.range[0]" in change)) return;
      setZoom([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    });
    plot.on("plotly_doubleclick", () => setZoom(null));
    plot.on("plotly_click", (event) => {
      const tick = event.points.find((point) => point.data.yaxis === "y9");
      if (tick && String(tick.customdata).startsWith("/")) location.href = tick.customdata;
    });
  }

  async function drawAll() {
    if (!figures) return;
    drawing = true;
    try { for (const panel of panels) await draw(panel); } finally { drawing = false; }
    root.dataset.drawn = Number(root.dataset.drawn || 0) + 1;
  }

  function setZoom(range) {
    zoom = range;
    resetButton.hidden = !zoom;
    drawAll();
  }
  resetButton.addEventListener("click", () => setZoom(null));

  async function refresh() {
    clearTimeout(timer);
    let wait = 3;
    if (dragging) wait = 0.5; // a redraw would tear the zoom out of one's hand
    else if (!document.hidden) {
      try {
        const query = new URLSearchParams({ range: root.dataset.range, theme: theme() });
        const answer = await fetch(`${root.dataset.url}?${query}`, { signal: AbortSignal.timeout(10000) });
        if (answer.redirected) { location.reload(); return; }
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        const body = await answer.json();
        wait = body.refresh_s;
        figures = body.figures;
        await drawAll();
        document.dispatchEvent(new Event("greenserve:answered"));
      } catch {
        document.dispatchEvent(new Event("greenserve:failed"));
      }
    }
    timer = setTimeout(refresh, wait * 1000);
  }

  function download(panel, format) {
    const name = panel.dataset.chart;
    const figure = figures?.[name];
    if (!figure) return;
    const layout = structuredClone(figure.layout);
    layout.title = { text: figure.meta.question, x: 0.01, xanchor: "left", font: { size: 18 } };
    layout.margin = { ...layout.margin, t: 84, b: 84 };
    layout.paper_bgcolor = layout.plot_bgcolor = getComputedStyle(document.body).backgroundColor;
    if (zoom) layout.xaxis.range = zoom;
    layout.annotations.push({
      text: `Source: ${figure.meta.source}. Until ${figure.meta.until ?? "–"}`, showarrow: false, xref: "paper", yref: "paper",
      x: 0, y: 0, xanchor: "left", yanchor: "top", yshift: -52, font: { size: 11 },
    });
    const stamp = new Date().toISOString().replace(/[-:]|\.\d+/g, "");
    Plotly.downloadImage({ data: figure.data, layout }, { format, width: 1200, height: 600, filename: `greenserve-${name}-${stamp}` });
  }
  for (const panel of panels) {
    for (const button of panel.querySelectorAll("[data-download]")) {
      button.addEventListener("click", () => download(panel, button.dataset.download));
    }
  }

  root.addEventListener("pointerdown", () => { dragging = true; });
  for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, () => { dragging = false; }, true);
  document.addEventListener("greenserve:theme", refresh);
  dark.addEventListener("change", refresh);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  refresh();
})();
