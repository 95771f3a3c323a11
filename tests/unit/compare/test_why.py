"""Why one variant is slower: exposed communication, waiting, compute; from the measures that the diagnosis leaves."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dtk.compare.compare import compare
from dtk.compare.figures import figures
from dtk.compare.model import RunRecord
from dtk.compare.traces import breakdown
from dtk.compare.why import verdicts
from tests.unit.compare.folders import GATHERED, make_run


def measures(
    compute: float, communication: float, exposed: float, waiting: float | None, steps: int = 2
) -> dict[str, Any]:
    """As the overlap detector writes them, of two ranks that differ by a tenth around these means per step."""
    ranks = {}
    for rank, factor in enumerate((0.9, 1.1)):
        values = {
            "compute_ms": compute,
            "communication_ms": communication,
            "overlapped_ms": communication - exposed,
            "exposed_ms": exposed,
            "memory_ms": 0.0,
            "idle_ms": 10.0,
            "wall_ms": compute + exposed + 10.0,
        }
        ranks[rank] = {name: value * factor * steps for name, value in values.items()}
        ranks[rank]["waiting_exposed_ms"] = None if waiting is None else waiting * factor * steps
        ranks[rank]["steps"] = [{"step": n} for n in range(steps)]
        ranks[rank]["groups"] = {"dp": {"exposed_ms": exposed * factor * steps}}
    return {"overlap": {"steps": steps, "ranks": ranks}}


def test_a_step_is_the_mean_over_ranks_and_steps() -> None:
    found = breakdown(measures(60.0, 20.0, 12.0, 3.0))
    assert found is not None
    assert found.compute_ms == pytest.approx(60.0)
    assert found.exposed_ms == pytest.approx(12.0)
    assert found.waiting_ms == pytest.approx(3.0)
    assert found.exposed_by_group == pytest.approx({"dp": 12.0})
    assert found.wall_ms == pytest.approx(found.compute_ms + found.exposed_ms + found.idle_ms)
    for nothing in ({}, {"overlap": {}}, {"overlap": {"ranks": {}, "steps": 2}}, {"overlap": 7}):
        assert breakdown(nothing) is None


def test_exposed_communication_waiting_and_causes_are_told(tmp_path: Path) -> None:
    change = {"strategy": {"name": "fsdp"}}
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", times_s=0.131, change=change, traffic=GATHERED)]
    found = compare(runs)
    spent = {"ddp": measures(60.0, 20.0, 8.0, 1.0), "fsdp": measures(90.0, 74.0, 45.0, 30.0)}

    def traced(run: RunRecord, label: str) -> RunRecord:
        causes = ("a cause: what was seen",) if label == "fsdp" else ()
        return dataclasses.replace(run, breakdown=breakdown(spent[label]), causes=causes)

    for variant in found.variants:
        variant.compared = [traced(run, variant.label) for run in variant.compared]
    (told,) = verdicts(found.variants, figures(found.variants, 2, ratios=True))
    assert "61 % of its communication is exposed, 45 ms a step (ddp: 8 ms), 30 ms of it waiting for late ranks" in told
    assert "30 ms more compute in a step" in told
    assert "diagnosis: a cause: what was seen" in told


def test_the_same_collectives_are_said_to_be_the_same(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", times_s=0.2, change={"strategy.bucket_cap_mb": 1})]
    (told,) = compare(runs).verdicts
    assert told.startswith("ddp bucket_cap_mb=1 is 2.00x slower than ddp bucket_cap_mb=25.0")
    assert "the same collectives" in told
