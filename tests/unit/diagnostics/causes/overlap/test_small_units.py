"""Sharded units are too small for their collectives."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import text_of
from tests.trace_generator import write
from tests.unit.diagnostics.causes.overlap.helpers import dtk_run, finding_of, scenario

CAUSE = "overlap.small_units"


def test_tiny_gathers_are_found(tmp_path: Path, detect: Any) -> None:
    write(scenario("tiny_units").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert finding.status == "confirmed" and "gathered in 48 tiny units" in text_of(finding).summary
    assert "groups of several blocks" in text_of(finding).remedies[0].change


def test_a_run_of_dtk_is_told_how_many_blocks_a_unit_should_hold(tmp_path: Path, detect: Any) -> None:
    write(scenario("tiny_units").build(), tmp_path)
    run = dtk_run({"strategy": {"blocks_per_unit": 1}})
    change = text_of(finding_of(detect(tmp_path, run=run), CAUSE)).remedies[0].change
    assert change.startswith("strategy.blocks_per_unit=") and int(change.rpartition("=")[2]) >= 2


def test_units_of_a_block_each_rule_it_out(tmp_path: Path, detect: Any) -> None:
    write(scenario("fsdp").build(), tmp_path)
    assert finding_of(detect(tmp_path), CAUSE).status == "ruled_out"


def test_without_a_trace_it_is_open(detect: Any) -> None:
    finding = finding_of(detect(), CAUSE)
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing
