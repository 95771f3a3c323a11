"""Compute stops for collectives whose results it does not need yet."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import text_of
from tests.trace_generator import write
from tests.unit.diagnostics.causes.overlap.helpers import finding_of, scenario

CAUSE = "overlap.blocking_wait"


def test_collectives_between_kernels_of_one_phase_are_waited_for(tmp_path: Path, detect: Any) -> None:
    write(scenario("tensor_parallel").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert (finding.status, finding.ranks) == ("confirmed", (0, 1, 2, 3))
    assert finding.cost is not None and finding.cost.value == 2.64, "22 all_reduces of 120 us that nothing hides"
    assert "for 22 collectives per step (all_reduce)" in text_of(finding).summary
    assert "async_op=True" in text_of(finding).remedies[0].change


def test_reductions_of_gradients_are_not_waited_for_in_a_phase(tmp_path: Path, detect: Any) -> None:
    write(scenario("ddp").build(), tmp_path)
    assert finding_of(detect(tmp_path), CAUSE).status == "ruled_out"


def test_gathers_of_sharded_units_are_judged_with_the_units(tmp_path: Path, detect: Any) -> None:
    write(scenario("no_prefetch").build(), tmp_path)
    assert finding_of(detect(tmp_path), CAUSE).status == "ruled_out"


def test_without_a_trace_it_is_open(detect: Any) -> None:
    finding = finding_of(detect(), CAUSE)
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing
