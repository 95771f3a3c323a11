"""The step waits for its data loader."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import text_of
from tests.trace_generator import write
from tests.unit.diagnostics.causes.overlap.helpers import finding_of, scenario

CAUSE = "overlap.data_bound"


def test_all_ranks_wait_for_their_loaders(tmp_path: Path, detect: Any) -> None:
    write(scenario("loader").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (0, 1, 2, 3), ())
    assert "_MultiProcessingDataLoaderIter" in text_of(finding).summary
    assert "num_workers" in text_of(finding).remedies[0].change


def test_one_rank_waits_and_the_others_wait_for_it(tmp_path: Path, detect: Any) -> None:
    write(scenario("late_loader").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (2,), (0, 1, 3))


def test_a_host_that_does_something_else_is_no_loader(tmp_path: Path, detect: Any) -> None:
    write(scenario("late_host").build(), tmp_path)
    assert finding_of(detect(tmp_path), CAUSE).status == "ruled_out"


def test_without_a_trace_it_is_open(detect: Any) -> None:
    finding = finding_of(detect(), CAUSE)
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing
