// What all pages share: theme, keyboard, sortable tables, and honesty when the server does not answer.
(() => {
  "use strict";

  // -- theme ---------------------------------------------------------------------------------------
  const themes = ["auto", "light", "dark"];
  const toggle = document.querySelector("[data-theme-toggle]");
  const current = () => document.documentElement.dataset.theme || "auto";
  const nameTheme = () => { toggle.textContent = `Theme: ${current()}`; };
  toggle.addEventListener("click", () => {
    const next = themes[(themes.indexOf(current()) + 1) % themes.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try { localStorage.setItem("greenserve-theme", next); } catch { /* not kept, then */ }
    nameTheme();
    document.dispatchEvent(new Event("greenserve:theme"));
  });
  nameTheme();

  for (const form of document.querySelectorAll("[data-submit-on-change]")) {
    form.addEventListener("change", () => form.requestSubmit());
  }

  // -- the server's silence ------------------------------------------------------------------------
  const offline = document.getElementById("offline");
  let silentSince = null;
  function failed() {
    silentSince ||= new Date();
    offline.textContent = `No answer from the server since ${silentSince.toLocaleTimeString()}. What you see is from then. Look at: greenserve status, greenserve logs web`;
    offline.hidden = false;
    document.body.classList.add("stale-page");
  }
  function answered() {
    silentSince = null;
    offline.hidden = true;
    document.body.classList.remove("stale-page");
  }
  document.addEventListener("greenserve:failed", failed);
  document.addEventListener("greenserve:answered", answered);
  for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) document.addEventListener(name, failed);

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden) event.preventDefault(); // nobody looks
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    const url = event.detail.xhr.responseURL;
    if (url && new URL(url).pathname !== new URL(event.detail.pathInfo.requestPath, location.href).pathname) {
      event.detail.shouldSwap = false; // sent to the sign-in page: the session is over
      location.reload();
      return;
    }
    if (event.detail.shouldSwap) answered();
  });

  // -- tables --------------------------------------------------------------------------------------
  const cellValue = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return null;
    const raw = cell.dataset.v ?? cell.textContent.trim();
    if (raw === "" || raw === "–") return null;
    const number = Number(raw);
    return Number.isNaN(number) ? raw : number;
  };
  function sort(table) {
    const column = Number(table.dataset.sortColumn ?? -1);
    if (column < 0) return;
    const sign = table.dataset.sortDirection === "descending" ? -1 : 1;
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row, n) => ({ row, n, value: cellValue(row, column) }));
    keyed.sort((a, b) => {
      if (a.value === null || b.value === null) return (a.value === null) - (b.value === null) || a.n - b.n;
      const order = typeof a.value === "number" && typeof b.value === "number"
        ? a.value - b.value : String(a.value).localeCompare(String(b.value));
      return sign * order || a.n - b.n;
    });
    if (keyed.some((entry, n) => entry.n !== n)) body.append(...keyed.map((entry) => entry.row));
  }
  for (const table of document.querySelectorAll("[data-sortable]")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const ascending = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      table.dataset.sortColumn = column;
      table.dataset.sortDirection = ascending ? "ascending" : "descending";
      sort(table);
    }));
  }
  function filter(input) {
    const table = document.querySelector(input.dataset.search);
    const wanted = input.value.trim().toLowerCase();
    for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  }
  const searches = [...document.querySelectorAll("[data-search]")];
  const filters = searches.filter((input) => input.dataset.search);
  filters.forEach((input) => input.addEventListener("input", () => filter(input)));
  document.addEventListener("htmx:afterSwap", (event) => {
    const table = event.target.closest("table");
    if (!table) return;
    sort(table);
    filters.filter((input) => document.querySelector(input.dataset.search) === table).forEach(filter);
  });

  // -- keyboard ------------------------------------------------------------------------------------
  const keys = document.getElementById("keys");
  let pending = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest("input, select, textarea");
    if (typing) {
      if (event.key === "Escape") typing.blur();
      return;
    }
    if (pending && Date.now() - pending < 1500) {
      pending = 0;
      const link = document.querySelector(`[data-go="${event.key}"]`);
      if (link) { event.preventDefault(); link.click(); }
      if (event.key === "p") { event.preventDefault(); goToPools(); }
      return;
    }
    pending = event.key === "g" ? Date.now() : 0;
    if (event.key === "/" && searches.length) { event.preventDefault(); searches[0].focus(); }
    if (event.key === "?") { event.preventDefault(); keys.showModal(); }
    if (event.key === "ArrowDown" || event.key === "ArrowUp") moveRow(event);
  });
  function goToPools() {
    const title = document.getElementById("pools-title");
    if (!title) { location.href = document.querySelector('[data-go="o"]').href + "#pools"; return; }
    title.scrollIntoView();
    title.focus();
  }
  function moveRow(event) {
    const table = event.target.closest("table[data-keys]") || event.target.querySelector?.(":scope > table[data-keys]");
    if (!table) return;
    const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
    const here = rows.indexOf(event.target.closest("tbody tr"));
    const next = rows[here < 0 ? 0 : here + (event.key === "ArrowDown" ? 1 : -1)];
    if (!next) return;
    event.preventDefault();
    (next.querySelector("a") || next).focus();
  }
})();
