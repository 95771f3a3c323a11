"""The parameters of a unit are gathered only when compute needs them."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import text_of
from tests.trace_generator import write
from tests.unit.diagnostics.causes.overlap.helpers import dtk_run, finding_of, scenario

CAUSE = "overlap.no_prefetch"


def test_gathers_that_overlap_nothing_are_found_in_both_passes(tmp_path: Path, detect: Any) -> None:
    write(scenario("no_prefetch").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert finding.status == "confirmed" and "(forward and backward)" in text_of(finding).summary
    assert "set_modules_to_forward_prefetch" in text_of(finding).remedies[0].change


def test_a_run_of_dtk_that_prefetches_one_unit_is_told_to_prefetch_two(tmp_path: Path, detect: Any) -> None:
    write(scenario("no_prefetch").build(), tmp_path)
    for depth, advised in ((0, 1), (1, 2)):
        finding = finding_of(detect(tmp_path, run=dtk_run({"strategy": {"prefetch_depth": depth}})), CAUSE)
        assert text_of(finding).remedies[0].change == f"strategy.prefetch_depth={advised}"


def test_gathers_that_run_ahead_rule_it_out(tmp_path: Path, detect: Any) -> None:
    write(scenario("fsdp").build(), tmp_path)
    assert finding_of(detect(tmp_path), CAUSE).status == "ruled_out"


def test_without_sharded_parameters_there_is_nothing_to_gather(tmp_path: Path, detect: Any) -> None:
    write(scenario("ddp").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert finding.status == "ruled_out" and "not sharded" in text_of(finding).summary


def test_without_a_trace_it_is_open(detect: Any) -> None:
    finding = finding_of(detect(), CAUSE)
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing
