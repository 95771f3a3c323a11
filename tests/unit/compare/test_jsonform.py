"""The comparison as data: everything that the page shows, units in the names, values that JSON can hold."""

import json
from pathlib import Path

import msgspec

from dtk.compare.compare import compare
from dtk.compare.jsonform import as_json
from tests.unit.compare.folders import FSDP, GATHERED, make_run


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
