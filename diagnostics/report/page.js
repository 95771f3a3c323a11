"use strict";
// The page works without this script; it adds the theme, opening all, a table that starts where ranks diverged, a timeline to zoom, arrow keys, the filter and copying.
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
  all("button[hidden], input[hidden], .tools [hidden]").forEach((control) => { control.hidden = false; });

  all("th.focus").forEach((column) => {
    const box = column.closest(".scroll");
    if (!box) return;
    const names = column.parentElement.cells[0].offsetWidth, room = box.clientWidth - names;  // The names of ranks stay in view.
    const most = Math.min(column.offsetLeft - names - (room - column.offsetWidth) / 2, box.scrollWidth - box.clientWidth);
    const whole = (start) => start <= most && column.offsetLeft + column.offsetWidth - names - start <= room;
    const starts = [...column.parentElement.cells].map((cell) => cell.offsetLeft - names);  // No column is cut on the left.
    box.scrollLeft = starts.filter(whole).at(-1) ?? column.offsetLeft - names;
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
    before = all(".tree details").map((branch) => [branch, branch.open]);
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

  // A timeline: `from` and `to` are the shares of its length between which it is shown.
  all("figure.zoom").forEach((figure) => {
    const scales = [...figure.querySelectorAll("svg.scale")];
    const ticks = [...figure.querySelectorAll(".ticks span")];
    const length = Number(figure.dataset.width);
    const least = 1e-4;
    let from = 0, to = 1, drawn = false;
    const draw = () => {
      drawn = false;
      const span = to - from;
      scales.forEach((scale) => {
        scale.setAttribute("x", (-100 * from / span) + "%");
        scale.setAttribute("width", (100 / span) + "%");
      });
      const digits = Math.max(0, Math.min(6, Math.ceil(2 - Math.log10(span * length))));
      ticks.forEach((tick, n) => {
        const at = (from + span * n / (ticks.length - 1)) * length;
        tick.textContent = at.toFixed(digits) + " " + figure.dataset.unit;
      });
    };
    const show = (start, span) => {
      span = Math.min(1, Math.max(least, span));
      from = Math.min(1 - span, Math.max(0, start));
      to = from + span;
      if (!drawn) { drawn = true; requestAnimationFrame(draw); }
    };
    const zoom = (factor, at = 0.5) => {
      const span = Math.min(1, Math.max(least, (to - from) * factor));
      show(from + at * (to - from - span), span);
    };
    const move = (share) => show(from + share * (to - from), to - from);
    const share = (event) => {
      const box = scales[0].parentElement.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    const keys = {
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => show(0, 1), Home: () => show(0, 1),
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
    };
    figure.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      keys[event.key]();
      event.preventDefault();
    });
    // The wheel belongs to the page unless the timeline was chosen, or Ctrl is held as a pinch on a touchpad does.
    figure.addEventListener("wheel", (event) => {
      if (!event.target.closest("svg.bar") || !(event.ctrlKey || figure.contains(document.activeElement))) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 1000);
      else zoom(Math.exp(event.deltaY / 400), share(event));
    }, { passive: false });
    let held = null;
    figure.addEventListener("pointerdown", (event) => {
      const bar = event.target.closest("svg.bar");
      if (event.button || !bar) return;
      held = share(event);
      figure.focus({ preventScroll: true });
      bar.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    figure.addEventListener("pointermove", (event) => {
      if (held === null) return;
      const now = share(event);
      move(held - now);
      held = now;
    });
    ["pointerup", "pointercancel"].forEach((name) => figure.addEventListener(name, () => { held = null; }));
    figure.addEventListener("dblclick", (event) => { if (event.target.closest("svg.bar")) zoom(0.4, share(event)); });
    const steps = { in: () => zoom(0.5), out: () => zoom(2), all: () => show(0, 1) };
    figure.querySelectorAll("button[data-zoom]").forEach((button) => {
      button.addEventListener("click", steps[button.dataset.zoom]);
    });
    addEventListener("beforeprint", () => { show(0, 1); draw(); });
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
