"""Runs, variants and comparisons: what follows from their fields."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.evidence.limits import Limits
from dtk.compare.load import load
from dtk.compare.model import Check, Comparison, RunRecord, Variant
from tests.unit.compare.folders import make_run


def run(tmp_path: Path, name: str, **more: Any) -> RunRecord:
    return load(make_run(tmp_path, name, **more), Limits())


def comparison(*variants: Variant, status: Any = "same") -> Comparison:
    checks = (Check("k", "title", status, ""),)
    return Comparison(
        variants=variants, checks=checks, figures=(), verdicts=(), scaling=(), grid=(), warmup_steps=2, notes=()
    )


def test_a_value_is_found_by_its_dotted_key(tmp_path: Path) -> None:
    record = run(tmp_path, "a")
    assert record.get("train.global_batch_size") == 8 and record.batch == (8, 128)
    assert record.get("train.nothing", 3) == 3
    assert record.get("seed.below") is None, "a value is not a section"
    assert record.name == "a"


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        (["finished"], ""),
        (["failed", "oom"], "oom"),
        (["lost", "hung"], "hung"),
        (["preempted"], "no steps"),
        (["finished", "failed"], "failed"),
    ],
)
def test_the_worst_ending_is_the_outcome(tmp_path: Path, states: list[Any], outcome: str) -> None:
    # No run records that it was lost: that is said of one that says it runs, and whose process is gone.
    recorded = [run(tmp_path, f"{n}", state="running" if state == "lost" else state) for n, state in enumerate(states)]
    runs = [replace(record, state=state) for record, state in zip(recorded, states, strict=True)]
    assert Variant("v", runs, [item for item in runs if item.state == "finished"]).outcome == outcome


def test_two_variants_or_repeats_are_comparable_and_one_run_is_not(tmp_path: Path) -> None:
    a, b = run(tmp_path, "a"), run(tmp_path, "b")
    two = [Variant("a", [a], [a]), Variant("b", [b], [b])]
    repeats, variant = Variant("a", [a, b], [a, b]), Variant("a", [a], [a])
    assert comparison(*two).comparable and not comparison(*two).repeats
    assert comparison(repeats).comparable and comparison(repeats).repeats
    assert not comparison(variant).comparable
    assert not comparison(*two, status="differs").comparable
    assert comparison(*two, status="unknown").comparable
    dead = Variant("c", [b], [])
    assert comparison(two[0], dead).compared == [two[0]] and not comparison(two[0], dead).comparable
