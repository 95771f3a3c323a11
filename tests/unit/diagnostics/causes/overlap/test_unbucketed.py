"""Gradients are reduced after backward, one by one or in a few flat buffers."""

from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import text_of
from tests.trace_generator import write
from tests.trace_scenarios import MIB, Simulator, backward, by_step, forward
from tests.unit.diagnostics.causes.overlap.helpers import finding_of, scenario

CAUSE = "overlap.unbucketed"


def test_reductions_after_backward_are_found(tmp_path: Path, detect: Any) -> None:
    write(scenario("unbucketed").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert (
        finding.status == "confirmed" and "gradients are reduced one by one after backward" in text_of(finding).summary
    )
    assert "23 reductions of 92 MiB per step" in str(finding.evidence[0].detail) and finding.where == ()
    assert "DistributedDataParallel" in text_of(finding).remedies[0].change


def test_reductions_during_backward_rule_it_out(tmp_path: Path, detect: Any) -> None:
    write(scenario("tiny_buckets").build(), tmp_path)
    assert finding_of(detect(tmp_path), CAUSE).status == "ruled_out"


@pytest.mark.parametrize(("count", "op"), [(1, "all_reduce"), (3, "all_reduce"), (2, "reduce_scatter")])
def test_a_few_flat_buffers_are_found_as_well(tmp_path: Path, detect: Any, count: int, op: str) -> None:
    sim = Simulator()

    def step() -> None:
        forward(sim)
        backward(sim)
        sim.host(20.0)
        for _ in range(count):
            sim.wait(sim.collective(op, 512 * MIB // count, 6000.0 / count))

    write(by_step(sim, step), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert finding.status == "confirmed" and finding.cost is not None and finding.cost.value > 3.0
    assert f"in {count} collective" in text_of(finding).summary


def test_without_a_trace_it_is_open(detect: Any) -> None:
    finding = finding_of(detect(), CAUSE)
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing
