"""The document of a comparison."""

from pathlib import Path

from diagnostics.report import document as doc
from dtk.compare import report as report_module
from dtk.compare.compare import compare
from dtk.compare.report import headline, runs_text
from tests.unit.compare.folders import FSDP, as_page, make_run


def test_a_long_name_in_front_of_a_bar_is_whole(tmp_path: Path) -> None:
    """It is text beside the drawing, which folds where it has no room."""
    name = "a_strategy_with_a_name_that_has_no_end"
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change={"strategy": {"name": name}})]
    drawn = as_page(compare(runs)).split("<h2>Throughput</h2>")[1].split("</section>")[0]
    assert f"<span>{name}</span>" in drawn and f"<title>{name}: " in drawn


def test_runs_without_steps_are_shown_and_not_compared(tmp_path: Path) -> None:
    died = make_run(tmp_path, "a", times_s=[], state="failed", reason="rank 1: ValueError: bad batch")
    comparison = compare([died, make_run(tmp_path, "b", change=FSDP)])
    assert [runs_text(variant) for variant in comparison.variants] == ["FAILED", "1"]
    assert not comparison.verdicts
    assert "only fsdp has figures" in headline(comparison)
    half = make_run(tmp_path, "c", times_s=[0.1] * 6, state="hung")
    assert [variant.outcome for variant in compare([half, tmp_path / "b"]).variants] == ["hung", ""]
    assert headline(compare([died, half])) == "no run has steps to compare"


def test_steps_below_a_plot_are_whole_and_stand_where_they_are() -> None:
    curve = doc.Curve("ddp", tuple((float(step), 5.0 - step / 10) for step in range(1, 13)))
    ticks = report_module._plot([curve], "Training loss", "step", str).x.ticks
    assert ticks == (5.0, 10.0), "as far from each other as their numbers say, and not 2.5 under the text `step 2`"
