"""The page of a plan in headless Chromium, from disk: no errors, no requests, all text and plots, also when narrow."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtk.plan.report.page import render
from tests.unit.plan.samples import HOSTILE, on_device, plan, report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a page from disk; nothing may be logged, thrown or requested."""
    problems: list[str] = []
    contexts = []

    def open_page(text: str, **options: Any) -> Any:
        path = tmp_path / "plan.html"
        path.write_text(text)
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: problems.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def test_everything_is_there_and_nothing_is_wrong(visit: Any) -> None:
    page = visit(render(report()))
    text = page.inner_text("body")
    for told in (
        "FITS",
        "gpt2_xl (1.56 B parameters) under fsdp on 8 ranks",
        "4 GiB (16.7 %) to spare",
        "Take strategy=fsdp",
        "device 24 GiB",
        "across nodes",
        "they disagree",
        "dropout is 0",
    ):
        assert told in text, told
    assert page.locator("svg[role=img]").count() == 4
    assert page.locator("polyline").count() == 3
    assert page.locator("circle").count() == 9
    assert page.locator("table tbody tr").count() > 20


def test_the_points_of_a_plot_stand_where_their_values_are(visit: Any) -> None:
    """Tokens/s grow with the ranks, so later points are further right and higher; the limit is above the memory."""
    page = visit(render(report()))
    places = page.eval_on_selector_all(
        "circle.l0", "all => all.map(one => [Number(one.getAttribute('cx')), Number(one.getAttribute('cy'))])"
    )
    memory, speed = places[:3], places[3:]
    assert [x for x, _ in speed] == sorted({x for x, _ in speed})
    assert [y for _, y in speed] == sorted({y for _, y in speed}, reverse=True)
    assert len({y for _, y in memory}) == 1
    assert float(page.locator("line.limit").get_attribute("y1")) < memory[0][1]


def test_a_hostile_name_stays_text(visit: Any) -> None:
    named = dataclasses.replace(on_device(plan()), model=HOSTILE, hardware=HOSTILE)
    page = visit(render(report(plan=named, job=(HOSTILE,))))
    assert "<script>alert(1)</script>" in page.inner_text("h1")
    assert page.locator("script, img").count() == 0


def test_figures_open_by_keyboard(visit: Any) -> None:
    page = visit(render(report()))
    first = page.locator("summary").first
    assert not page.locator("details td").first.is_visible()
    first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details td").first.is_visible()


def test_it_fits_a_narrow_window_and_the_dark(visit: Any) -> None:
    page = visit(render(report()), viewport={"width": 360, "height": 800}, color_scheme="dark")
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 360
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == "rgb(20, 23, 26)"
