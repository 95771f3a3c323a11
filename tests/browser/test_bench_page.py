"""The page of `dtk bench comm` in headless Chromium: nothing wrong, axes logarithmic, also when narrow."""

from itertools import pairwise
from typing import Any

import pytest

from tests.unit.bench.samples import HOSTILE, compared, report
from tests.unit.bench.test_report import as_page as render


def test_both_axes_are_logarithmic(visit: Any) -> None:
    """Sizes are a factor of 16 apart, so equally far; a bandwidth 10 times another is always as far above it."""
    page = visit(render(report()))
    assert "RESULTS VERIFIED" in page.inner_text("body")
    places = page.eval_on_selector_all(
        "circle.k0", "all => all.map(one => [one.getBoundingClientRect().x, Number(one.getAttribute('cy'))])"
    )
    across = [b[0] - a[0] for a, b in pairwise(places)]
    assert across[0] > 100 and across[0] == pytest.approx(across[1], abs=0.2)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    lines = page.eval_on_selector_all("line.grid", "all => all.map(one => Number(one.getAttribute('y1')))")
    apart = [b - a for a, b in pairwise(lines)]
    assert len(apart) > 1 and max(apart) == pytest.approx(min(apart), abs=0.2)
    assert page.locator("polyline").count() == 5


def test_two_presets_stay_text_and_fit_a_narrow_window(visit: Any) -> None:
    page = visit(render(compared(HOSTILE)), viewport={"width": 360, "height": 800}, color_scheme="dark")
    assert page.locator("script").count() == 0
    assert "faster" in page.inner_text("body")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
