// Draws a page's charts and keeps them fresh: one zoom for all (it stands in the URL, and has the server answer with
// finer buckets), what is seen first, nothing while nobody looks. The page is there before Plotly is.
(() => {
  "use strict";
  const root = document.getElementById("charts");
  if (!root) return;
  const library = new Promise((resolve, reject) => {
    if (window.Plotly) { resolve(); return; }
    const script = document.querySelector("script[data-plotly]");
    script.addEventListener("load", resolve);
    script.addEventListener("error", reject);
  });
  const panels = [...root.querySelectorAll("[data-chart]")];
  const resetButton = document.querySelector("[data-reset-zoom]") ?? document.createElement("a");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displayModeBar: false, doubleClick: false, showTips: false };
  const live = document.querySelector("[data-live]");
  const split = "split" in root.dataset; // the server draws single charts for less than all
  const seen = new Set();
  const figures = {};
  let decisions = null; // the marks at the foot of all charts on the time axis
  let zoom = null; // [from, to] on the shared axis, until the server has answered for that range
  let asked = 0; // the newest question's number: an older one's answer is not drawn
  let timer = 0;
  let drawing = false;
  let dragging = false;

  const theme = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");

  function plotOf(panel) { return panel.querySelector(".plot"); }

  const onTime = (layout) => layout.xaxis?.type === "date";

  function traces(figure) { return decisions && onTime(figure.layout) ? [...figure.data, decisions] : figure.data; }

  async function draw(panel) {
    const figure = figures[panel.dataset.chart];
    if (!figure) return;
    const plot = plotOf(panel);
    const { question, source, until_said: until, empty, stale, lacking, rest } = figure.meta;
    panel.querySelector("[data-question]").textContent = question;
    const fresh = until ? `${stale ? "Stale since" : "Until"} ${until}. ` : "";
    panel.querySelector("[data-source]").textContent = `${fresh}Source: ${source}`;
    const without = panel.querySelector("[data-lacking]");
    without.hidden = !lacking;
    without.textContent = lacking ? `Without ${lacking}. ` : "";
    const more = panel.querySelector("[data-rest]");
    if (more) {
      more.hidden = !rest;
      if (rest) { more.href = rest[0] + keptQuery(); more.textContent = `See ${rest[1]}`; }
    }
    panel.classList.toggle("stale", stale);
    panel.querySelector(".empty").hidden = !empty;
    plot.hidden = empty;
    plot.setAttribute("aria-label", `${question} ${source}`);
    if (empty) return;
    const layout = structuredClone(figure.layout);
    layout.xaxis.uirevision = Date.now(); // the zoom is the URL's, for all charts at once
    if (zoom && onTime(layout)) layout.xaxis.range = zoom;
    if (plot.clientWidth < 480 && onTime(layout)) { layout.xaxis.nticks = 4; layout.margin.l = 48; }
    const isNew = !plot.classList.contains("js-plotly-plot");
    await Plotly.react(plot, traces(figure), layout, config);
    if (isNew) listen(plot);
  }

  function listen(plot) {
    plot.on("plotly_relayout", (change) => {
      if (drawing || !("xaxis.range[0]" in change) || plot._fullLayout.xaxis.type !== "date") return;
      setZoom([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    });
    plot.on("plotly_doubleclick", () => setZoom(null));
    plot.on("plotly_click", (event) => {
      const linked = event.points.find((point) => String(point.customdata).startsWith("/"));
      if (linked) location.href = linked.customdata;
    });
  }

  async function drawThese(these) {
    await library;
    drawing = true;
    try { for (const panel of these) await draw(panel); } finally { drawing = false; }
  }

  function drawn() { root.dataset.drawn = Number(root.dataset.drawn || 0) + 1; }

  function setZoom(range) {
    const url = new URL(location.href);
    for (const name of ["from", "to"]) url.searchParams.delete(name);
    if (range) {
      const [from, to] = range.map((moment) => moment.slice(0, 19).replace(" ", "T"));
      url.searchParams.set("from", from.length === 10 ? `${from}T00:00:00` : from);
      url.searchParams.set("to", to.length === 10 ? `${to}T00:00:00` : to);
      url.searchParams.set("zone", root.dataset.zone);
    }
    history.replaceState(null, "", url);
    zoom = range;
    resetButton.hidden = !range;
    if (live) live.textContent = range ? "fixed" : "live";
    drawThese(panels).then(() => { drawn(); refresh(); });
  }
  resetButton.addEventListener("click", (event) => { event.preventDefault(); setZoom(null); });

  function keptQuery() {
    const query = new URLSearchParams(location.search);
    for (const name of [...query.keys()]) if (!["range", "from", "to", "zone"].includes(name)) query.delete(name);
    return query.size ? `?${query}` : "";
  }

  function question(more) {
    const query = new URLSearchParams(location.search);
    query.set("theme", theme());
    query.set("width", String(Math.round(Math.max(...panels.map((panel) => panel.clientWidth), 0))));
    for (const [name, value] of Object.entries(more ?? {})) query.set(name, value);
    return query;
  }

  // Of what stands on the screen first, then of the rest; a chart that nobody sees is fetched anew when it is seen.
  function portions(every) {
    if (!split) return [panels];
    const here = panels.filter((panel) => seen.has(panel));
    const there = panels.filter((panel) => !seen.has(panel));
    return (every ? [here, there] : [here]).filter((these) => these.length);
  }

  async function ask(these, number) {
    const names = these.map((panel) => panel.dataset.chart).join(",");
    const query = question(split ? { charts: names } : {});
    const answer = await fetch(`${root.dataset.url}?${query}`, { signal: AbortSignal.timeout(30000) });
    if (number !== asked) return null;
    if (answer.redirected) { location.reload(); return null; }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const body = await answer.json();
    return number === asked ? body : null;
  }

  async function refresh({ every = true } = {}) {
    clearTimeout(timer);
    let wait = 3;
    if (dragging) wait = 0.5; // a redraw would tear the zoom out of one's hand
    else if (!document.hidden) {
      const number = ++asked;
      try {
        const asks = portions(every);
        for (const these of asks) {
          const body = await ask(these, number);
          if (!body) return;
          wait = body.refresh_s;
          Object.assign(figures, body.figures);
          decisions = body.decisions ?? null;
          await drawThese(these);
          if (number !== asked) return;
        }
        if (asks.length) {
          zoom = null; // the answer's own range is it
          drawn();
          document.dispatchEvent(new Event("greenserve:answered"));
        }
      } catch {
        if (number !== asked) return;
        document.dispatchEvent(new Event("greenserve:failed"));
      }
    }
    timer = setTimeout(() => refresh({ every: dragging && every }), wait * 1000);
  }

  function download(panel, format) {
    const name = panel.dataset.chart;
    const figure = figures[name];
    if (!figure) return;
    const layout = structuredClone(figure.layout);
    layout.title = { text: figure.meta.question, x: 0.01, xanchor: "left", font: { size: 18 } };
    layout.margin = { ...layout.margin, t: 84, b: 84 };
    layout.paper_bgcolor = layout.plot_bgcolor = getComputedStyle(document.body).backgroundColor;
    layout.annotations ??= [];
    layout.annotations.push({
      text: `Source: ${figure.meta.source}. Until ${figure.meta.until ?? "–"}${figure.meta.lacking ? `. Without ${figure.meta.lacking}` : ""}`, showarrow: false, xref: "paper", yref: "paper",
      x: 0, y: 0, xanchor: "left", yanchor: "top", yshift: -52, font: { size: 11 },
    });
    const stamp = new Date().toISOString().replace(/[-:]|\.\d+/g, "");
    Plotly.downloadImage({ data: traces(figure), layout }, { format, width: 1200, height: 600, filename: `greenserve-${name}-${stamp}` });
  }
  for (const panel of panels) {
    for (const button of panel.querySelectorAll("[data-download]")) {
      button.addEventListener("click", () => download(panel, button.dataset.download));
    }
    const table = panel.querySelector("[data-csv]");
    table?.addEventListener("click", () => { table.href = `${root.dataset.url}?${question({ csv: table.dataset.csv })}`; });
  }

  root.addEventListener("pointerdown", () => { dragging = true; });
  for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, () => { dragging = false; }, true);
  document.addEventListener("greenserve:theme", () => refresh());
  dark.addEventListener("change", () => refresh());
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh({ every: false }); });

  let begun = false;
  const watch = new IntersectionObserver((entries) => {
    const before = seen.size;
    for (const entry of entries) {
      if (entry.isIntersecting) seen.add(entry.target);
      else seen.delete(entry.target);
    }
    if (!begun) { begun = true; refresh(); }
    else if (split && seen.size > before) { clearTimeout(timer); timer = setTimeout(() => refresh({ every: false }), 150); }
  });
  panels.forEach((panel) => watch.observe(panel));
})();
