"""The timeline of a step in headless Chromium: zoomed and moved by wheel, pointer, buttons and keys; the rest stays."""

from typing import Any

import pytest

from tests.unit.diagnostics.report.samples import as_page, report

WIDTH_MS = 40.0
SPAN = {"regions": [["forward", 0.0, 15.0, 0.0]], "calls": [["all_reduce", 20.0, 30.0, 4.0]], "idle": []}
MEASURES = {
    "overlap": {
        "ranks": {"0": {"compute_ms": 20.0, "wall_ms": WIDTH_MS}, "1": {"compute_ms": 20.0, "wall_ms": WIDTH_MS}},
        "timeline": {"step": 3, "ranks": {"0": {"length_ms": WIDTH_MS, **SPAN}, "1": {"length_ms": 30.0, **SPAN}}},
    }
}


@pytest.fixture(params=[1200, 375])
def page(visit: Any, request: pytest.FixtureRequest) -> Any:
    return visit(as_page(report(measures=MEASURES)), viewport={"width": request.param, "height": 900})


def shown_ms(page: Any) -> tuple[float, float]:
    """Return what the scale below the timeline says after the next frame."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    first, *_, last = (float(text.split()[0]) for text in page.locator(".ticks span").all_text_contents())
    return first, last


def bar(page: Any) -> Any:
    box = page.locator("figure.zoom svg.bar").first
    box.scroll_into_view_if_needed()
    return box.bounding_box()


def drawn_at(page: Any, hint: str) -> tuple[float, float]:
    """Return where a stretch of the first rank begins and ends, as shares of the width."""
    box, place = bar(page), page.locator("figure.zoom rect", has_text=hint).first.bounding_box()
    remaining = (place["x"] - box["x"]) / box["width"]
    return remaining, remaining + place["width"] / box["width"]


def test_all_of_the_step_is_shown_first(page: Any) -> None:
    assert shown_ms(page) == (0.0, WIDTH_MS)
    assert drawn_at(page, "forward") == pytest.approx((0.0, 15 / 40), abs=0.01)
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_buttons_zoom_about_the_middle_and_back(page: Any) -> None:
    page.click("text=Zoom in")
    assert shown_ms(page) == (10.0, 30.0)
    assert drawn_at(page, "forward") == pytest.approx((-0.5, 0.25), abs=0.01)
    page.click("text=Zoom in")
    page.click("text=Zoom out")
    assert shown_ms(page) == (10.0, 30.0)
    page.click("text=Show all")
    assert shown_ms(page) == (0.0, WIDTH_MS)


def test_keys_zoom_and_move_and_stop_at_the_ends(page: Any) -> None:
    page.locator("figure.zoom").focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    assert shown_ms(page) == (15.0, 25.0)
    page.keyboard.press("ArrowRight")
    assert shown_ms(page) == (17.0, 27.0)
    for _ in range(30):
        page.keyboard.press("ArrowLeft")
    assert shown_ms(page) == (0.0, 10.0)
    page.keyboard.press("0")
    page.keyboard.press("-")
    assert shown_ms(page) == (0.0, WIDTH_MS)
    for _ in range(60):
        page.keyboard.press("+")
    low, high = shown_ms(page)
    assert high - low == pytest.approx(WIDTH_MS * 1e-4, rel=0.1), "there is a least length"


def test_the_wheel_is_the_pages_until_the_timeline_is_chosen(page: Any) -> None:
    box = bar(page)
    at = box["x"] + box["width"] / 4, box["y"] + box["height"] / 2
    page.mouse.move(*at)
    page.mouse.wheel(0, -100)
    assert shown_ms(page) == (0.0, WIDTH_MS)
    box = bar(page)
    at = box["x"] + box["width"] / 4, box["y"] + box["height"] / 2
    page.mouse.click(*at)
    page.mouse.wheel(0, -400)
    low, high = shown_ms(page)
    assert high - low < WIDTH_MS / 2 and low + (high - low) / 4 == pytest.approx(10.0, abs=0.5), "about the pointer"


def test_a_drag_moves_what_is_shown(page: Any) -> None:
    page.click("text=Zoom in")
    box = bar(page)
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.75, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, y, steps=5)
    page.mouse.up()
    assert shown_ms(page) == pytest.approx((15.0, 35.0), abs=0.3)
    page.mouse.move(box["x"], y)
    assert shown_ms(page) == pytest.approx((15.0, 35.0), abs=0.3), "the drag is over"


def test_a_double_click_zooms_in_there(page: Any) -> None:
    box = bar(page)
    page.mouse.dblclick(box["x"] + box["width"] * 0.5, box["y"] + box["height"] / 2)
    low, high = shown_ms(page)
    assert (low + high) / 2 == pytest.approx(20.0, abs=0.5) and high - low < WIDTH_MS / 2


def test_paper_has_the_whole_step(page: Any) -> None:
    page.click("text=Zoom in")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown_ms(page) == (0.0, WIDTH_MS)
