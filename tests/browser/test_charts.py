"""Charts in headless Chromium: they take the width they have, and what is written on them is whole and readable."""

from itertools import pairwise
from typing import Any

import pytest

from diagnostics.report import html
from diagnostics.report.document import Axis, Bar, Bars, Curve, Document, Dot, Mark, Plot, Section

NAME = "a_strategy_with_a_name_that_has_no_end batch=16 w8"
ENDS = "1,821.9 ms, 53% (1.31x, 1.28 to 1.34)"
HALO = 4
"""Pixels around a text in which its background is repeated; boxes include them."""
PARTS = ("compute", "communication")


def page() -> str:
    times = tuple(float(n) for n in range(10))
    bars = Bars(
        "bars", (Bar(NAME, (8.0, 2.0), ("8 s", "2 s"), ENDS), Bar("b", (4.0, 1.0), ("4 s", "1 s"), "5 s")), PARTS
    )
    curve = Curve("c", tuple((x, x * x) for x in times), dots=tuple(Dot(x, x * x, f"{x}") for x in times))
    marks = (Mark("the device has 80 GiB", y=80.0), Mark("peak", 9.0, 81.0, "peak"), Mark("step 3", x=3.0, tone="step"))
    across = Axis(lambda value: f"{value:.0f},000 KiB", 0.0, 9.0, ticks=times)
    plot = Plot("plot", across, Axis(lambda value: f"{value:.0f} GiB", 0.0, 100.0), (curve,), marks)
    return html.render(Document("charts", "charts", (Section("Charts", (bars, plot)),)))


@pytest.mark.parametrize("width", [1200, 375])
def test_charts_are_as_wide_as_their_frame_and_nothing_is_cut(visit: Any, width: int) -> None:
    shown = visit(page(), viewport={"width": width, "height": 900})
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    frame = shown.locator("section").bounding_box()
    for figure in shown.locator("figure").all():
        box = figure.bounding_box()
        assert box["x"] >= frame["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"]
        assert box["width"] > 0.9 * (frame["width"] - 48)
    assert shown.locator("svg.plot").bounding_box()["width"] == shown.locator("figure").last.bounding_box()["width"]
    for text in shown.locator("figure .row span").all():
        assert text.evaluate("one => one.scrollWidth <= one.clientWidth || one.scrollWidth === 0")
        assert frame["x"] <= text.bounding_box()["x"] < frame["x"] + frame["width"]
    assert NAME in shown.inner_text("figure.bars") and ENDS in shown.inner_text("figure.bars")


@pytest.mark.parametrize("width", [1200, 375])
def test_what_is_written_on_a_plot_keeps_its_size_and_stays_inside(visit: Any, width: int) -> None:
    shown = visit(page(), viewport={"width": width, "height": 900})
    plot = shown.locator("svg.plot").bounding_box()
    boxes = []
    for text in shown.locator("svg.plot > text:visible").all():
        assert text.evaluate("one => getComputedStyle(one).fontSize") == "12px"
        box = text.bounding_box()
        assert box["x"] >= plot["x"] - HALO and box["x"] + box["width"] <= plot["x"] + plot["width"] + HALO
        boxes.append(box)
    ticks = sorted((box["x"], box["x"] + box["width"]) for box in boxes if box["y"] > plot["y"] + plot["height"] - 26)
    assert len(ticks) >= 3
    assert all(end - HALO < start + HALO for (_, end), (start, _) in pairwise(ticks))


def test_parts_of_bars_are_as_long_as_their_values_at_any_width(visit: Any) -> None:
    for width in (1200, 375):
        shown = visit(page(), viewport={"width": width, "height": 900})
        wide = shown.eval_on_selector_all("rect", "all => all.map(one => one.getBoundingClientRect().width)")
        assert [item / wide[0] for item in wide] == pytest.approx([1, 2 / 8, 4 / 8, 1 / 8], abs=0.01)
