"""The page of a comparison in headless Chromium, from disk: no errors, no requests, all plots, also on paper."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from diagnostics.report.measures import Breakdown
from dtk.compare.compare import compare
from dtk.compare.model import Comparison
from tests.unit.compare.folders import GATHERED, as_page as render, losses, make_run

HOSTILE = '</title><script>alert(1)</script>"><img src=x onerror=alert(2)>'
SPENT = {"ddp": (90.0, 60.0, 20.0, 12.0, 8.0, 0.0, 22.0), "fsdp": (131.0, 62.0, 70.0, 25.0, 45.0, 4.0, 20.0)}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two strategies at two batches, three repeats, one of them on more ranks; one out of memory."""
    folder = tmp_path_factory.mktemp("runs")
    runs = []
    for n, jitter in enumerate((1.0, 1.03, 0.98)):
        for strategy, time_s, traffic in (("ddp", 0.1, None), ("fsdp", 0.131, GATHERED)):
            for batch in (8, 16):
                runs.append(
                    make_run(
                        folder,
                        f"{strategy}{batch}-{n}",
                        change={"strategy": {"name": strategy}, "train.global_batch_size": batch},
                        times_s=time_s * jitter * batch / 8,
                        loss=losses(12, batch / 8),
                        samples=range(batch, batch + 12),
                        memory_bytes=(400 if strategy == "ddp" else 250) << 20,
                        minute=4 * n,
                        **({"traffic": traffic} if traffic else {}),
                    )
                )
    runs.append(
        make_run(folder, "w4", change={"strategy": {"name": "ddp"}}, world_size=4, samples=range(8, 20), times_s=0.06)
    )
    died: dict[str, Any] = {"strategy": {"name": "zero1"}, "train.global_batch_size": 16}
    runs.append(make_run(folder, "dead", change=died, times_s=[], state="oom", reason="rank 0: out of memory"))
    comparison = compare(runs)
    for variant in comparison.compared:
        spent = SPENT[variant.label.split(" ")[0]]
        variant.compared = [
            structs.replace(run, breakdown=Breakdown(*spent, waiting_ms=None)) for run in variant.compared
        ]
    return comparison


def test_everything_is_there_and_nothing_is_wrong(visit: Any, comparison: Comparison) -> None:
    page = visit(render(comparison))
    text = page.inner_text("body")
    for phrase in (
        "COMPARABLE",
        "1.31x slower than ddp",
        "24 all_gathers of about 28 MiB",
        "OOM",
        "initial weights (hash)",
        "Training loss",
        "Where a step goes",
        "Scaling over numbers of ranks",
        "95% interval",
        "out of memory",
    ):
        assert phrase in text, phrase
    assert page.locator("figure").count() == 5  # Throughput, memory, breakdown, losses, scaling.
    assert page.locator("line.whisker").count() >= 24
    assert page.locator("script").count() == 0


def test_bars_are_as_long_as_their_figures(visit: Any, comparison: Comparison) -> None:
    page = visit(render(comparison))
    widths = page.eval_on_selector_all(
        'figure[aria-label="peak memory"] rect', "all => all.map(one => parseFloat(one.getAttribute('width')))"
    )
    labels = [
        cell.variant for figure in comparison.figures if figure.key == "peak_memory_bytes" for cell in figure.cells
    ]
    by_label = dict(zip(labels, widths, strict=True))
    ddp, fsdp = (next(w for name, w in by_label.items() if name.startswith(text)) for text in ("ddp", "fsdp"))
    assert fsdp / ddp == pytest.approx(250 / 400, abs=0.01)


def test_curves_of_equal_losses_stay_visible_and_fall(visit: Any, comparison: Comparison) -> None:
    page = visit(render(comparison))
    lines = page.eval_on_selector_all(
        'svg[aria-label="Training loss over steps"] polyline',
        "all => all.map(one => ['points', 'stroke-dasharray', 'class'].map(name => one.getAttribute(name)))",
    )
    assert len(lines) == len(comparison.compared)
    assert len({(dashes, kind) for _, dashes, kind in lines}) == len(lines)
    for points, _, _ in lines:
        heights = [float(point.split(",")[1]) for point in points.split()]
        assert heights == sorted(heights)  # Down the picture: y grows.
    assert page.locator("polyline").first.evaluate("one => getComputedStyle(one).fill") == "none"


def test_hostile_names_stay_text(visit: Any, tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change={"strategy": {"name": HOSTILE}}, reason=HOSTILE)]
    page = visit(render(compare(runs)))
    assert "<script>alert(1)</script>" in page.inner_text("body")
    assert page.locator("script, img").count() == 0


def test_it_fits_a_narrow_window_the_dark_and_paper(visit: Any, comparison: Comparison) -> None:
    page = visit(render(comparison), viewport={"width": 360, "height": 800}, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgba(0, 0, 0, 0)", "the paper's own"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(22, 25, 29)"
    assert page.pdf()[:4] == b"%PDF"
