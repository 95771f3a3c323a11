"""Whether a prediction fits its device and the host of its node, and its plain values."""

import dataclasses
import json
from pathlib import Path
from typing import get_args

import pytest

from diagnostics.analysis.memory import categories
from diagnostics.evidence.memory.levels import TEMPORARIES
from dtk.plan.formulas.prediction import SCHEMA, Category, Memory, notes
from tests.unit.plan.samples import GIB, on_device, plan


@pytest.mark.parametrize(("gib", "fits", "excess_gib"), [(19, False, 1), (20, True, 0), (24, True, -4)])
def test_a_device_holds_the_peak_or_not(gib: int, fits: bool, excess_gib: int) -> None:
    prediction = on_device(plan(), gib)
    assert prediction.fits is fits
    assert prediction.excess_bytes == excess_gib * GIB


def test_without_a_device_nothing_is_said() -> None:
    assert plan().fits is None


@pytest.mark.parametrize(("node_gib", "fits"), [(None, True), (40, True), (39, False)])
def test_what_is_offloaded_must_fit_the_host_of_a_node(node_gib: int | None, fits: bool) -> None:
    prediction = on_device(plan())
    prediction = dataclasses.replace(
        prediction,
        memory=dataclasses.replace(prediction.memory, host_bytes=5 * GIB),
        node_ranks=8,
        node_host_bytes=None if node_gib is None else node_gib * GIB,
    )
    assert prediction.host_bytes_per_node == 40 * GIB
    assert (prediction.fits, prediction.exceeds_host) == (fits, not fits)
    assert (prediction.excess_bytes <= 0) == fits


def test_the_larger_excess_counts() -> None:
    memory = Memory(0, {"parameters": 30}, "forward", {}, host_bytes=10)
    assert memory.excess_bytes(20, 4, 100) == 10
    assert memory.excess_bytes(20, 4, 25) == 15
    assert memory.excess_bytes(20, 4, None) == 10
    assert dataclasses.replace(memory, host_bytes=0).excess_bytes(20, 4, -100) == 10, "nothing is offloaded"


def test_plain_values_have_the_figures_that_are_properties() -> None:
    output = json.loads(json.dumps(on_device(plan()).as_json()))
    assert (output["schema"], output["fits"], output["peak_bytes"]) == (SCHEMA, True, 20 * GIB)
    assert output["memory"]["at_peak_bytes"]["parameters"] == GIB
    assert output["traffic"][0]["op"] == "all_gather"


def test_the_categories_of_a_plan_are_those_of_a_diagnosis() -> None:
    """Otherwise a diagnosis would call a peak that fits its plan a difference."""
    assert {*get_args(Category)} - {"allocator slack"} <= {*categories.KIND_OF, TEMPORARIES}


def test_notes_are_the_rows_that_hold(tmp_path: Path) -> None:
    (tmp_path / "engine.yaml").write_text('notes: {one: "{count:#block}", two: never, three: "under {name}"}')
    rules = {"three": True, "two": 0, "one": [1]}
    assert notes(str(tmp_path / "engine.py"), rules, count=2, name="fsdp") == ("under fsdp", "2 blocks")
