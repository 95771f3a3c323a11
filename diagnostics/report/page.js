"use strict";
// The page works without this script; it adds the theme, opening all, a timeline that starts where ranks diverged, arrow keys, the filter and copying.
(() => {
  const root = document.documentElement;
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("dtk-theme"); } catch { /* storage is off for files in some browsers */ }
  const theme = () => (chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light");
  const button = one("#theme");
  const paint = () => {
    if (chosen) root.dataset.theme = chosen;
    button.textContent = theme() === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", "Switch to the " + (theme() === "dark" ? "light" : "dark") + " theme");
  };
  system.addEventListener("change", paint);
  button.addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("dtk-theme", chosen); } catch { /* this page only, then */ }
    paint();
  });
  paint();
  all("button[hidden], input[hidden]").forEach((control) => { control.hidden = false; });

  all("th.focus").forEach((column) => {
    const box = column.closest(".scroll");
    if (box) box.scrollLeft = column.offsetLeft + column.offsetWidth / 2 - box.clientWidth / 2;
  });

  const branches = all(".tree details");
  const toggle = one("#open-all");
  toggle.addEventListener("click", () => {
    const open = branches.some((branch) => !branch.open);
    branches.forEach((branch) => { branch.open = open; });
    toggle.textContent = open ? "Close all" : "Open all";
  });
  one("#print").addEventListener("click", () => print());

  let before = null;
  addEventListener("beforeprint", () => {
    before = all("details").map((branch) => [branch, branch.open]);
    before.forEach(([branch]) => { branch.open = true; });
  });
  addEventListener("afterprint", () => {
    (before || []).forEach(([branch, open]) => { branch.open = open; });
    before = null;
  });

  one(".tree").addEventListener("keydown", (event) => {
    const summary = event.target.closest("summary");
    if (!summary) return;
    const branch = summary.parentElement;
    const seen = all(".tree summary").filter((other) => other.checkVisibility());
    const at = seen.indexOf(summary);
    const outer = branch.parentElement.closest("details");
    if (event.key === "ArrowDown") seen[at + 1]?.focus();
    else if (event.key === "ArrowUp") seen[at - 1]?.focus();
    else if (event.key === "ArrowRight" && !branch.open) branch.open = true;
    else if (event.key === "ArrowRight") branch.querySelector(":scope > details > summary")?.focus();
    else if (event.key === "ArrowLeft" && branch.open) branch.open = false;
    else if (event.key === "ArrowLeft" && outer) outer.firstElementChild.focus();
    else return;
    event.preventDefault();
  });

  const filter = one("#filter");
  if (filter) {
    filter.addEventListener("input", () => {
      const word = filter.value.trim().toLowerCase();
      all("#causes tbody tr").forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(word); });
      if (word) all("#causes details").forEach((folded) => { folded.open = true; });
    });
  }

  const copied = async (text) => {
    if (navigator.clipboard) {
      try { await navigator.clipboard.writeText(text); return true; } catch { /* refused: the old way */ }
    }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  all("button[data-copy]").forEach((control) => {
    control.addEventListener("click", async () => {
      const done = await copied(control.dataset.copy);
      control.textContent = done ? "Copied" : "Copy failed";
      control.focus();
      setTimeout(() => { control.textContent = "Copy"; }, 1500);
    });
  });
})();
