"""The document of a comparison."""

import json
from pathlib import Path

import msgspec

from diagnostics.report import document as doc
from dtk.compare import report as report_module
from dtk.compare.compare import compare
from dtk.compare.report import as_json, headline, runs_text
from tests.unit.compare.folders import FSDP, GATHERED, as_page, make_run


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


def test_all_parts_are_there_and_are_plain_values(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", times_s=0.2, change=FSDP, traffic=GATHERED)]
    result = as_json(compare(runs))
    assert json.loads(msgspec.json.encode(result)) == json.loads(json.dumps(result))
    assert result["schema"] == "dtk.comparison/1" and result["comparable"] is True
    assert result["headline"].startswith("comparable")
    assert {check["key"]: check["status"] for check in result["parity"]}["losses"] == "same"
    first, second = result["variants"]
    assert (first["label"], first["world_size"], first["global_batch_size"]) == ("ddp", 2, 8)
    assert [kind["op"] for kind in second["collectives"]] == ["all_gather", "reduce_scatter", "all_reduce"]
    assert [run["steps"] for run in first["runs"]] == [12] and first["runs"][0]["compared"] is True
    step = next(figure for figure in result["figures"] if figure["key"] == "step_time_s")
    assert step["unit"] == "s" and step["less_is_better"] is True and step["definition"]
    assert [cell["ratio"] and cell["ratio"]["median"] for cell in step["variants"]] == [None, 2.0]


def test_a_figure_that_a_variant_lacks_is_null(tmp_path: Path) -> None:
    dead = make_run(tmp_path, "a", times_s=[], state="oom", reason="rank 0: CUDA out of memory")
    result = as_json(compare([dead, make_run(tmp_path, "b", change=FSDP)]))
    assert result["comparable"] is False and result["verdicts"] == []
    lost = result["variants"][0]["runs"][0]
    assert (lost["state"], lost["reason"], lost["steps"]) == ("oom", "rank 0: CUDA out of memory", 0)
    assert lost["compared"] is False and lost["breakdown"] is None
