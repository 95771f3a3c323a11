"""The report of a plan as plain values: every figure of it, and nothing that was not asked for."""

import dataclasses
import json

from diagnostics.report import jsonform
from dtk.plan.compare import FittingLayout, Search
from dtk.plan.formulas.holding import STAGES, TRAININGS
from dtk.plan.model import as_json
from tests.unit.plan.samples import GIB, on_device, plan, report


def test_json_holds_what_the_text_says() -> None:
    output = json.loads(jsonform.text(as_json(report())))
    assert output["schema"] == "dtk.plan.report/1"
    assert output["plan"]["peak_bytes"] == 20 * GIB
    assert output["plan"]["fits"] is True
    assert output["check"]["simulated"]["engine"] == "simulated"
    assert output["check"]["differences"][0] == {
        "what": "peak",
        "closed_form": 20 * GIB,
        "simulated": 28 * GIB,
        "unit": "bytes",
    }
    assert output["compare"]["recommended"] == "fsdp"
    assert output["compare"]["rows"][0]["problem"] == "it is one process"
    assert [point["world_size"] for point in output["scaling"]] == [8, 64, 512, 7]
    assert output["max_model"][1]["plan"] is None
    assert output["max_batch"]["overrides"] == ["train.micro_batch_size=6"]
    assert "compare" not in as_json(report(comparison=None))


def test_what_was_not_asked_for_is_absent() -> None:
    bare = report(comparison=None, scaling=(), models=(), batch=None, check=None)
    assert set(as_json(bare)) == {"schema", "job", "local_size", "precision", "plan", "notes", "doubts"}
    assert as_json(report(plan=plan()))["precision"] == {"compute_dtype": "bfloat16", "peak_flops": None}


def test_a_search_keeps_its_counts_and_its_plans() -> None:
    layout = FittingLayout(("strategy=fsdp", "parallel.tp=2"), on_device(plan()))
    search = as_json(report(search=Search((layout,), 40, 12, 20, ("The first is faster.",))))["search"]
    assert (search["layouts"], search["too_large"], search["too_slow"]) == (40, 12, 20)
    assert search["reasons"] == ["The first is faster."]
    assert search["found"][0]["overrides"] == ["strategy=fsdp", "parallel.tp=2"]
    assert search["found"][0]["plan"]["peak_bytes"] == 20 * GIB


def test_the_memory_table_is_of_the_ranks_that_share_the_batch() -> None:
    split = dataclasses.replace(plan(), dp_size=2)
    rows = as_json(report(plan=split, trainings=TRAININGS))["memory_table"]
    assert [row["name"] for row in rows] == [training.name for training in TRAININGS]
    full = rows[0]
    assert full["per_parameter"] == 16
    assert full["rank_bytes"] == [TRAININGS[0].rank_bytes(split.parameters, stage, 2) for stage in STAGES]
    assert full["rank_bytes"][3] == full["rank_bytes"][0] / 2
