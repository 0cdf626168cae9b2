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

  const menu = document.querySelector("[data-menu]");
  menu?.addEventListener("click", () => {
    const open = document.body.classList.toggle("menu-open");
    menu.setAttribute("aria-expanded", String(open));
  });

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
    if (!event.detail.shouldSwap) return;
    answered();
    const target = event.detail.target;
    if (!target.matches("[data-merge]")) return;
    event.detail.shouldSwap = false; // only what has changed is put in: focus, selection and scroll stay
    merge(target, event.detail.serverResponse);
  });

  // -- live lists ----------------------------------------------------------------------------------
  // Rows are known by their ids. An opened row's details (`data-of`) stay with it.
  function merge(list, html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    const fresh = [...(template.content.querySelector("[data-merge]") ?? template.content).children];
    const table = list.closest("table");
    if (table?.classList.contains("cards")) label(table, fresh);
    const details = new Map([...list.children].filter((row) => row.dataset.of).map((row) => [row.dataset.of, row]));
    const known = new Map([...list.children].filter((row) => row.id).map((row) => [row.id, row]));
    const wanted = [];
    for (const row of fresh) {
      const old = known.get(row.id);
      if (old) update(old, row);
      wanted.push(old ?? row);
      if (details.has(row.id)) wanted.push(details.get(row.id));
    }
    const kept = new Set(wanted);
    for (const row of [...list.children]) if (!kept.has(row)) row.remove();
    const sorted = table?.matches("[data-sortable]") && Number(table.dataset.sortColumn ?? -1) >= 0;
    wanted.forEach((row, n) => {
      const isNew = !row.isConnected;
      if (sorted ? isNew : list.children[n] !== row) list.insertBefore(row, sorted ? null : list.children[n] ?? null);
      if (isNew) window.htmx?.process(row);
    });
    if (table) settled(table);
  }
  function update(old, fresh) {
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const opener = old.querySelector("[data-expand]");
    if (opener) fresh.querySelector("[data-expand]")?.setAttribute("aria-expanded", opener.getAttribute("aria-expanded"));
    const cells = [...fresh.children];
    if (cells.length !== old.children.length) { old.replaceChildren(...cells); return; }
    [...old.children].forEach((cell, n) => {
      if (cell.dataset.figure && cells[n].dataset.figure) { // drawn into: its values are new, not itself
        for (const { name, value } of cells[n].attributes) if (name !== "class" && cell.getAttribute(name) !== value) cell.setAttribute(name, value);
      } else if (cell.outerHTML !== cells[n].outerHTML && !cell.contains(document.activeElement)) cell.replaceWith(cells[n]);
    });
  }

  // A row's details are fetched when it is opened; a live list in them stays fresh, in the order it is sorted by.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-expand]");
    if (!button) return;
    const row = button.closest("tr");
    const opened = row.nextElementSibling?.dataset.of === row.id ? row.nextElementSibling : null;
    button.setAttribute("aria-expanded", String(!opened));
    if (opened) { opened.remove(); return; }
    const details = row.parentElement.ownerDocument.createElement("tr");
    details.dataset.of = row.id;
    details.className = "details";
    const cell = details.insertCell();
    cell.colSpan = row.cells.length;
    cell.setAttribute("hx-get", button.dataset.expand);
    cell.setAttribute("hx-trigger", "load"); // the rows in it ask again by themselves
    row.after(details);
    window.htmx.process(details);
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
    const keyed = [...body.rows].filter((row) => !row.dataset.of).map((row, n) => ({ row, n, value: cellValue(row, column) }));
    keyed.sort((a, b) => {
      if (a.value === null || b.value === null) return (a.value === null) - (b.value === null) || a.n - b.n;
      const order = typeof a.value === "number" && typeof b.value === "number"
        ? a.value - b.value : String(a.value).localeCompare(String(b.value));
      return sign * order || a.n - b.n;
    });
    if (keyed.some((entry, n) => entry.n !== n)) body.append(...keyed.map((entry) => entry.row));
  }
  document.addEventListener("click", (event) => {
    const head = event.target.closest("[data-sortable] > thead th button")?.closest("th");
    if (!head) return;
    const table = head.closest("table");
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    table.dataset.sortColumn = head.cellIndex;
    table.dataset.sortDirection = ascending ? "ascending" : "descending";
    sort(table);
  });
  function filter(input) {
    const table = document.querySelector(input.dataset.search);
    const wanted = input.value.trim().toLowerCase();
    for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  }
  const searches = [...document.querySelectorAll("[data-search]")];
  const filters = searches.filter((input) => input.dataset.search);
  filters.forEach((input) => input.addEventListener("input", () => filter(input)));
  function settled(table) {
    sort(table);
    filters.filter((input) => document.querySelector(input.dataset.search) === table).forEach(filter);
  }

  // A phone shows the rows of a wide table as cards, in which each figure says what it is.
  const WIDE = 4; // columns that a phone has room for
  function label(table, rows) {
    const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent.trim());
    for (const row of rows) {
      if (row.cells?.length !== heads.length) continue;
      heads.forEach((head, n) => { if (head) row.cells[n].dataset.label = head; });
    }
  }
  function makeCards(root) {
    for (const table of root.querySelectorAll("table.dense:not(.stacked):not(.cards)")) {
      if ((table.tHead?.rows[0]?.cells.length ?? 0) <= WIDE) continue;
      table.classList.add("cards");
      for (const body of table.tBodies) label(table, body.rows);
    }
  }
  makeCards(document);
  document.addEventListener("htmx:load", (event) => makeCards(event.target));

  // -- keyboard ------------------------------------------------------------------------------------
  const keys = document.getElementById("keys");
  document.querySelector("[data-help]")?.addEventListener("click", () => keys.showModal());
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
      return;
    }
    pending = event.key === "g" ? Date.now() : 0;
    if (event.key === "/" && searches.length) { event.preventDefault(); searches[0].focus(); }
    if (event.key === "?" && keys) { event.preventDefault(); keys.showModal(); }
    if (event.key === "ArrowDown" || event.key === "ArrowUp") moveRow(event);
  });
  function moveRow(event) {
    const table = event.target.closest("table[data-keys]") || event.target.querySelector?.(":scope > table[data-keys]");
    if (!table) return;
    const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden && !row.dataset.of);
    const here = rows.indexOf(event.target.closest("tbody tr"));
    const next = rows[here < 0 ? 0 : here + (event.key === "ArrowDown" ? 1 : -1)];
    if (!next) return;
    event.preventDefault();
    (next.querySelector("a") || next).focus();
  }
})();
