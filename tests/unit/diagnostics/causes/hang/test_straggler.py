"""A rank is slow, not stuck: everything completed, and one rank kept coming late."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.evidence.gather import gather
from diagnostics.evidence.limits import Limits
from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job
from tests.unit.diagnostics.hang.dumps import detect, write

CAUSE = "hang.straggler"


def test_the_rank_that_keeps_coming_late_is_named_with_what_it_costs(tmp_path: Path) -> None:
    slow = [replace(STEP[0], takes_s=2.0), STEP[1]] * 5
    found = finding(tmp_path, job(STEP * 5, slow, STEP * 5), CAUSE)
    assert (found.status, found.ranks, found.victims) == ("confirmed", (1,), (0, 2))
    assert (
        found.summary.startswith("Rank 1 is late, not stuck: ")
        and "after ranks 0 and 2; everything completed" in found.summary
    )
    assert found.cost is not None and 8.0 <= found.cost.value <= 10.5 and found.cost.unit == "s blocked"


@pytest.mark.parametrize(("core_wait_s", "confidence"), [(9.0, 0.4), (1.0, 0.85)])
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
    (found,) = (one for one in detect(gather(tmp_path, Limits())) if one.cause == CAUSE)
    assert (found.status, found.ranks, found.confidence) == ("confirmed", (1,), confidence)
    assert ("waited for a core" in found.summary) == (confidence < 0.5)


def test_ranks_that_come_together_are_none(tmp_path: Path) -> None:
    assert finding(tmp_path, job(STEP * 5, STEP * 5), CAUSE).status != "confirmed"
