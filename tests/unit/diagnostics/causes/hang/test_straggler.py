"""A rank is slow, not stuck: everything completed, and one rank kept coming late."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job
from tests.unit.diagnostics.hang.dumps import detect, write

CAUSE = "hang.straggler"


def test_the_rank_that_keeps_coming_late_is_named_with_what_it_costs(tmp_path: Path) -> None:
    slow = [replace(STEP[0], takes_s=2.0), STEP[1]] * 5
    result = finding(tmp_path, job(STEP * 5, slow, STEP * 5), CAUSE)
    assert (result.status, result.ranks, result.victims) == ("confirmed", (1,), (0, 2))
    assert (
        result.summary.startswith("Rank 1 is late, not stuck: ")
        and "after ranks 0 and 2; everything completed" in result.summary
    )
    assert result.cost is not None and 8.0 <= result.cost.value <= 10.5 and result.cost.unit == "s blocked"


@pytest.mark.parametrize(("core_wait_s", "confidence"), [(9.0, 0.45), (1.0, 0.85)])
def test_who_waited_for_a_core_for_most_of_that_time_is_late_by_chance(
    tmp_path: Path, core_wait_s: float, confidence: float
) -> None:
    (tmp_path / "telemetry").mkdir()
    hosts = [
        {
            "rank_rss_bytes": dict.fromkeys("012", 1 << 30),
            "rank_core_wait_s": {"0": 3.0 + at, "1": 5.0 + at + late, "2": 4.0},
        }
        for at, late in ((0.0, 0.0), (0.5, core_wait_s))
    ]
    lines = [{"kind": "about", "cores": 2, "every_s": 0.5}]
    lines += [{"kind": "sample", "time_s": 1790000000.0 + n, "host": host} for n, host in enumerate(hosts)]
    (tmp_path / "telemetry" / "node_00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    slow = [replace(STEP[0], takes_s=2.0), STEP[1]] * 5
    write(tmp_path, job(STEP * 5, slow, STEP * 5))
    (finding,) = (item for item in detect(gather(tmp_path, Limits())) if item.cause == CAUSE)
    assert (finding.status, finding.ranks, finding.confidence) == ("confirmed", (1,), confidence)
    assert ("waited for a CPU core" in finding.summary) == (confidence < 0.5)


def test_ranks_that_come_together_are_none(tmp_path: Path) -> None:
    assert finding(tmp_path, job(STEP * 5, STEP * 5), CAUSE).status != "confirmed"


def test_a_rank_that_was_suspended_is_named_and_no_line_of_it(tmp_path: Path) -> None:
    stopped = [*STEP * 4, replace(STEP[0], takes_s=12.0), STEP[1]]
    write(tmp_path, job(STEP * 5, STEP * 5, stopped))
    record = {"kind": "paused", "rank": 2, "pauses": [[5.0, 12.0]]}
    (tmp_path / "pauses_2.json").write_text(json.dumps(record))
    (first, *_) = diagnose(tmp_path).root_causes
    assert (first.cause, first.ranks, first.victims, first.where) == (CAUSE, (2,), (0, 1), ())
    assert "suspended for 12 s" in text_of(first).summary
    for rank in (0, 1):  # The whole job was suspended, as by a scheduler.
        (tmp_path / f"pauses_{rank}.json").write_text(json.dumps(record | {"rank": rank}))
    assert "suspended" not in "".join(text_of(root_cause).summary for root_cause in diagnose(tmp_path).root_causes)


def test_a_call_that_failed_because_a_rank_came_too_late_did_not_complete(tmp_path: Path) -> None:
    late = [*STEP * 2, replace(STEP[0], takes_s=60.0)]
    result = finding(tmp_path, job([*STEP * 2, STEP[0]], late, nobody_completes=5, timed=True), CAUSE)
    assert (result.status, result.ranks) == ("confirmed", (1,))
    assert "that call did not complete" in result.summary and "everything completed" not in result.summary
