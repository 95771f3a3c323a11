"""The host waits for the device within the step."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import text_of
from tests.trace_generator import write
from tests.unit.diagnostics.causes.overlap.helpers import finding_of, scenario

CAUSE = "overlap.sync_point"


def test_values_that_are_read_in_the_step_are_found(tmp_path: Path, detect: Any) -> None:
    write(scenario("sync_point").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert (finding.status, finding.ranks) == ("confirmed", (0, 1, 2, 3))
    assert "waits for the device within the step (" in text_of(finding).summary
    assert "non_blocking=True" in text_of(finding).remedies[0].change


def test_a_host_that_is_slow_to_launch_does_not_wait(tmp_path: Path, detect: Any) -> None:
    write(scenario("slow_launches").build(), tmp_path)
    assert finding_of(detect(tmp_path), CAUSE).status == "ruled_out"


def test_without_a_trace_it_is_open(detect: Any) -> None:
    finding = finding_of(detect(), CAUSE)
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing
