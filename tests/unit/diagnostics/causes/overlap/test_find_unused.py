"""DDP searches the graph for unused parameters in every step."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import text_of
from tests.trace_generator import write
from tests.unit.diagnostics.causes.overlap.helpers import dtk_run, finding_of, scenario

CAUSE = "overlap.find_unused"


def test_the_search_and_its_reduction_are_seen(tmp_path: Path, detect: Any) -> None:
    write(scenario("find_unused").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert finding.status == "confirmed" and "search 6.00 ms on the host" in str(finding.evidence[0].detail)
    (remedy,) = text_of(finding).remedies
    assert remedy.kind == "code" and "find_unused_parameters=False" in remedy.change


def test_a_run_of_dtk_gets_the_override(tmp_path: Path, detect: Any) -> None:
    write(scenario("find_unused").build(), tmp_path)
    run = dtk_run({"strategy": {"find_unused_parameters": True}})
    (remedy,) = text_of(finding_of(detect(tmp_path, run=run), CAUSE)).remedies
    assert (remedy.kind, remedy.change) == ("override", "strategy.find_unused_parameters=false")


def test_a_configuration_without_the_search_rules_it_out(tmp_path: Path, detect: Any) -> None:
    write(scenario("find_unused").build(), tmp_path)
    run = dtk_run({"strategy": {"find_unused_parameters": False}})
    assert finding_of(detect(tmp_path, run=run), CAUSE).status == "ruled_out"


def test_without_a_trace_it_is_open(detect: Any) -> None:
    finding = finding_of(detect(), CAUSE)
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing
