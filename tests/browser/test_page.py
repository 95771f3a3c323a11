"""The HTML page in headless Chromium, from disk: no errors, no requests, usable by mouse and keyboard, printable."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.diagnostics.report.samples import HOSTILE, as_page as render, finding, full, report, stacked

PERIL = "Memory ran out or is about to"


def gate(page: Any, title: str) -> Any:
    return page.locator(".tree summary", has_text=title)


def test_the_text_is_there_and_nothing_is_wrong(visit: Any) -> None:
    page = visit(render(full()))
    text = page.inner_text("body")
    for phrase in (
        "HUNG",
        "hang.collective_mismatch",
        "broadcast [1] int64",
        "train.py:88",
        "strategy.bucket_cap_mb=25",
    ):
        assert phrase in text
    assert page.locator("figure").count() == 3
    assert page.locator("table.dense td.bad").inner_text().split("\n") == ["broadcast [1] int64", "train.py:61"]


def test_the_tree_opens_by_click(visit: Any) -> None:
    page = visit(render(full()))
    leaf = page.locator(".tree .leaf", has_text="memory.leak")
    assert not leaf.is_visible()
    gate(page, PERIL).click()
    gate(page, "Memory is held but not used").click()
    assert leaf.is_visible()
    page.click("#open-all")
    assert page.locator(".tree details:not([open])").count() == 0
    page.click("#open-all")
    assert page.locator(".tree details[open]").count() == 0


def test_the_tree_opens_by_keyboard(visit: Any) -> None:
    page = visit(render(full()))
    gate(page, PERIL).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent").startswith("ruled out More is gathered")
    page.keyboard.press("ArrowRight")
    assert page.locator(".tree .leaf", has_text="memory.full_gather").is_visible()
    page.keyboard.press("ArrowDown")
    assert "The step needs more" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert PERIL in page.evaluate("document.activeElement.textContent")


def test_everything_can_be_reached_by_tab(visit: Any) -> None:
    page = visit(render(full()))
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
            )
        )
    assert {"theme", "print", "open-all", "filter", "SUMMARY", "BUTTON"} <= reached


def test_hostile_names_stay_text(visit: Any) -> None:
    page = visit(render(full(HOSTILE)))
    assert "<script>alert(1)</script>" in page.inner_text("main")
    assert page.locator("img").count() == 0 and page.locator("script").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_the_systems_until_one_chooses(visit: Any, scheme: Any) -> None:
    page = visit(render(full()), color_scheme=scheme)

    def brightness() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.strip("rgb()").split(",")[:3])

    assert (brightness() > 600) == (scheme == "light")
    page.click("#theme")
    assert (brightness() > 600) == (scheme == "dark")
    page.reload()
    assert (brightness() > 600) == (scheme == "dark")


def test_contrast_of_text(visit: Any) -> None:
    """WCAG AA: 4.5 for every text colour on what lies behind it."""
    for scheme in ("light", "dark"):
        page = visit(render(full()), color_scheme=scheme)
        page.click("#open-all")
        assert page.evaluate(CONTRAST) == []


CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const bad = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest("svg, script") || !element.checkVisibility()) continue;
    let behind = element;
    while (behind && (parse(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    const a = light(parse(getComputedStyle(element).color));
    const b = light(parse(getComputedStyle(behind || document.body).backgroundColor));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.add(element.tagName + "." + element.className + " " + ratio.toFixed(2));
  }
  return [...bad];
}"""


def test_remedies_are_copied(visit: Any) -> None:
    page = visit(render(full()), permissions=["clipboard-read", "clipboard-write"])
    button = page.locator("button[data-copy='strategy.bucket_cap_mb=25']")
    button.click()
    page.wait_for_function("[...document.querySelectorAll('button')].some((one) => one.textContent === 'Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == "strategy.bucket_cap_mb=25"


def memory(name: str = "train.py") -> str:
    return render(report(finding("memory.activations"), measures=stacked(name)))


def test_memory_over_time_is_stacked_to_its_figures(visit: Any) -> None:
    page = visit(memory())
    shown = page.locator("#memory > details[open]")
    assert shown.count() == 1 and "rank 2" in shown.locator("summary").first.inner_text()
    assert "in step 7" in shown.inner_text()
    places = shown.locator("polygon").evaluate_all(
        "all => all.map(one => [...one.points].map(p => p.y)).map(ys => [Math.min(...ys), Math.max(...ys)])"
    )
    low = places[0][1]
    heights = [low - top for top, _ in places]
    sizes = [2**30, 2**30 + 21 * 2**28, 2**30 + 21 * 2**28 + 2**27, 2**30 + 21 * 2**28 + 2**27 + 2**29]
    assert [height / heights[-1] for height in heights] == pytest.approx([size / sizes[-1] for size in sizes], abs=0.01)
    mark = shown.locator("circle.peak").evaluate("one => Number(one.getAttribute('cy'))")
    assert (low - mark) / heights[-1] == pytest.approx(sizes[2] / sizes[-1], abs=0.01)
    assert shown.locator("line.limit").count() == 2


def test_other_ranks_and_figures_open_by_keyboard_and_on_paper(visit: Any) -> None:
    page = visit(memory())
    page.locator("#memory > details > summary", has_text="rank 0").focus()
    page.keyboard.press("Enter")
    assert page.locator("#memory > details[open]").count() == 2
    figures = page.locator("#memory summary", has_text="Figures of rank 0")
    figures.focus()
    page.keyboard.press("Enter")
    assert "(peak)" in page.locator("#memory table:visible").inner_text()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#memory details[open]").count() == 3, "what is closed stays closed on paper"


def test_memory_over_time_keeps_hostile_names_as_text_and_fits(visit: Any) -> None:
    for scheme in ("light", "dark"):
        page = visit(memory(HOSTILE), viewport={"width": 360, "height": 800}, color_scheme=scheme)
        assert "<script>alert(1)</script>" in page.inner_text("main")
        assert page.locator("img").count() == 0 and page.locator("script").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate(CONTRAST) == []


def test_the_filter_finds_a_cause(visit: Any) -> None:
    page = visit(render(full()))
    page.fill("#filter", "env.ib_disabled")
    shown = page.locator("#causes tbody tr:visible")
    assert shown.count() == 1 and "RDMA" in shown.inner_text()


def test_print_shows_the_whole_tree_on_white(visit: Any, tmp_path: Path) -> None:
    page = visit(render(full()), color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator(".tree details:not([open])").count() == 0
    assert not page.locator("#theme").is_visible() and not page.locator(".tools").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(20, 23, 26)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator(".tree details:not([open])").count() > 0
    assert page.pdf().startswith(b"%PDF")


def test_the_collective_that_differs_stands_beside_the_names_of_the_ranks_on_a_phone(visit: Any) -> None:
    page = visit(render(full()), viewport={"width": 360, "height": 740})
    edges = "cell => [cell.getBoundingClientRect().left, cell.parentElement.cells[0].getBoundingClientRect().right]"
    left, names_end = page.locator("th.focus").first.evaluate(edges)
    assert names_end - 1 <= left < 360


@pytest.mark.parametrize("width", [500, 620, 740])
def test_no_column_is_cut_beside_the_names_of_the_ranks(visit: Any, width: int) -> None:
    def calls(other: str) -> list[dict[str, Any]]:
        return [{"position": n, "op": other if n == 10 else "all_reduce", "state": "completed"} for n in range(20)]

    timeline = {"ranks": {"0": calls("broadcast"), "1": calls("all_reduce"), "2": calls("all_reduce")}}
    root = finding("hang.collective_mismatch", ranks=(0,), position=10)
    text = render(report(root, measures={"hang": {"timeline": timeline}}))
    edges = "cells => cells.map((cell) => [cell.getBoundingClientRect().left, cell.getBoundingClientRect().right])"
    names, *places = (
        visit(text, viewport={"width": width, "height": 740}).locator("tr:has(> th.focus) > *").evaluate_all(edges)
    )
    assert names[0] > places[0][0], "it is scrolled"
    assert not [left for left, right in places if left < names[1] - 3 and right > names[1] + 3]
    assert names[1] - 3 <= places[10][0] and places[10][1] <= width


def test_a_phone_does_not_scroll_sideways(visit: Any) -> None:
    page = visit(render(full("/a/very/long/path" * 12 + ".py")), viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_without_script_everything_is_there(visit: Any) -> None:
    page = visit(render(full()), java_script_enabled=False)
    gate(page, PERIL).click()
    assert gate(page, "Memory is held but not used").is_visible()
    assert page.locator("button:visible").count() == 0


def test_a_healthy_report(visit: Any) -> None:
    assert "HEALTHY" in visit(render(report())).inner_text("header")
