"""The page of a plan in headless Chromium, from disk: no errors, no requests, all text and plots, also when narrow."""

import dataclasses
from typing import Any

from tests.unit.plan.samples import HOSTILE, on_device, plan, report
from tests.unit.plan.test_report import as_page as render


def test_everything_is_there_and_nothing_is_wrong(visit: Any) -> None:
    page = visit(render(report()))
    text = page.inner_text("body")
    for phrase in (
        "FITS",
        "gpt2_xl (1.56 B parameters) under fsdp on 8 ranks",
        "4 GiB (16.7%) to spare",
        "device 24 GiB",
        "across nodes",
        "the engines disagree",
        "dropout is 0",
    ):
        assert phrase in text, phrase
    assert page.locator("dt:text-is('use') + dd").inner_text() == "strategy=fsdp"
    assert page.locator("figure").count() == 4
    assert page.locator("polyline").count() == 3
    assert page.locator("circle").count() == 9
    assert page.locator("table tbody tr").count() > 20


def test_the_points_of_a_plot_stand_where_their_values_are(visit: Any) -> None:
    """Tokens/s grow with the ranks, so later points are further right and higher; the limit is above the memory."""
    page = visit(render(report()))
    places = page.eval_on_selector_all(
        "circle.k0", "all => all.map(one => [parseFloat(one.getAttribute('cx')), Number(one.getAttribute('cy'))])"
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
