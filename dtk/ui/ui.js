"use strict";
// Fetches the page again and puts in what changed; on the page of all runs also a filter, sorting and ticks to compare.
(() => {
  const EVERY_MS = 2000;
  const ticked = new Set();
  const runs = () => document.querySelector("#runs");
  const address = new URL(location.href);

  const show = async () => {
    let text;
    try {
      const answer = await fetch(address, { cache: "no-store" });
      if (!answer.ok) return;
      text = await answer.text();
    } catch { return; /* dtk ui was stopped: what was last seen stays */ }
    const fresh = new DOMParser().parseFromString(text, "text/html");
    document.title = fresh.title;
    for (const selector of ["header", "main"]) {
      const old = document.querySelector(selector), now = fresh.querySelector(selector);
      if (!old || !now) continue;
      const before = [...old.children].filter((child) => child.id !== "tools"), after = [...now.children];
      if (before.length !== after.length || before.some((child, n) => child.tagName !== after[n].tagName)) {
        before.forEach((child) => child.remove());
        old.append(...after);
      } else {
        before.forEach((child, n) => {
          if ((child.source || child.outerHTML) === after[n].outerHTML) return;
          after[n].source = after[n].outerHTML;
          const open = new Map([...child.querySelectorAll("details")].map((fold, k) => [k, fold.open]));
          after[n].querySelectorAll("details").forEach((fold, k) => { if (open.has(k)) fold.open = open.get(k); });
          child.replaceWith(after[n]);
        });
      }
    }
    dress();
  };

  const go = () => { history.replaceState(null, "", address); show(); };

  const dress = () => {
    const table = runs()?.querySelector("table");
    if (!table) return;
    table.querySelectorAll("thead th").forEach((head) => {
      const key = { run: "name" }[head.textContent] || head.textContent;
      head.dataset.sort = key;
      head.tabIndex = 0;
      const sorted = (address.searchParams.get("sort") || "age") === key;
      head.setAttribute("aria-sort", sorted ? (address.searchParams.get("reverse") ? "descending" : "ascending") : "none");
    });
    table.querySelectorAll("tbody tr").forEach((row) => {
      const link = row.querySelector("a");
      if (!link || row.querySelector("input")) return;
      const id = decodeURIComponent(link.pathname.slice(5));
      const tick = document.createElement("input");
      tick.type = "checkbox";
      tick.checked = ticked.has(id);
      tick.setAttribute("aria-label", "Compare " + id);
      tick.addEventListener("change", () => { tick.checked ? ticked.add(id) : ticked.delete(id); count(); });
      link.before(tick, " ");
    });
  };

  let compare = null;
  const count = () => {
    compare.disabled = ticked.size < 2;
    compare.textContent = ticked.size < 2 ? "Compare: tick two runs" : "Compare " + ticked.size + " runs";
  };

  if (runs()) {
    const tools = document.createElement("div");
    tools.id = "tools";
    const filter = document.createElement("input");
    filter.type = "search";
    filter.placeholder = "Filter: strategy, model, state";
    filter.setAttribute("aria-label", filter.placeholder);
    filter.value = address.searchParams.get("q") || "";
    let typed = 0;
    filter.addEventListener("input", () => {
      clearTimeout(typed);
      typed = setTimeout(() => { address.searchParams.set("q", filter.value); address.searchParams.delete("page"); go(); }, 150);
    });
    compare = document.createElement("button");
    compare.type = "button";
    compare.addEventListener("click", () => {
      location.href = "/compare?" + new URLSearchParams([...ticked].map((id) => ["run", id]));
    });
    tools.append(filter, compare);
    document.querySelector("main").prepend(tools);
    count();
    const sort = (event) => {
      const head = event.target.closest("th[data-sort]");
      if (!head || (event.type === "keydown" && event.key !== "Enter")) return;
      const same = (address.searchParams.get("sort") || "age") === head.dataset.sort;
      if (same && !address.searchParams.get("reverse")) address.searchParams.set("reverse", "1");
      else address.searchParams.delete("reverse");
      address.searchParams.set("sort", head.dataset.sort);
      go();
    };
    document.addEventListener("click", sort);
    document.addEventListener("keydown", sort);
    dress();
  }
  const tick = async () => {
    const began = performance.now();
    if (!document.hidden) await show();
    setTimeout(tick, Math.max(EVERY_MS, 10 * (performance.now() - began)));  // At most a tenth of a core for many runs.
  };
  setTimeout(tick, EVERY_MS);
})();
