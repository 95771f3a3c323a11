"""Ranks whose clocks differ: brought together by their calls, and told apart from late ranks and from other jobs."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.analysis.histories.read import read
from diagnostics.evidence import safe_pickle
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.ring.format import FINISHED
from tests.unit.diagnostics.hang.dumps import (
    Job,
    Op,
    confirmed,
    detect,
    diagnose as verdict,
    evidence,
    set_clock,
    write,
)
from tests.unit.diagnostics.hang.rings import write_ring

A, B, C = Op(line=10), Op("all_gather", 16, 20), Op("barrier", line=30)
BROADCAST = Op("broadcast", 8, 15)
STEPS = [replace(A, takes_s=0.5), B] * 30


def program(world: int, differing: dict[int, list[Op]], common: list[Op]) -> Job:
    return Job({**{rank: list(common) for rank in range(world)}, **differing}, backend="gloo")


def by_one_clock(folder: Path) -> Evidence:
    evidence = gather(folder, Limits())
    assert not evidence.doubt
    return evidence


@pytest.mark.parametrize("seconds", [7.0, -45.0, 7200.0])
@pytest.mark.parametrize("ranks", [(1,), (0,), (2, 3)])
def test_a_mismatch_between_nodes_whose_clocks_differ(tmp_path: Path, ranks: tuple[int, ...], seconds: float) -> None:
    write(tmp_path, program(4, {1: [*STEPS, C]}, [*STEPS, A]))
    set_clock(tmp_path, ranks, seconds)
    evidence = by_one_clock(tmp_path)
    findings = [finding for finding in detect(evidence) if finding.status == "confirmed"]
    assert [(finding.cause, finding.ranks) for finding in findings] == [("hang.uneven_iterations", (1,))]
    assert findings[0].cost is None or findings[0].cost.value < 1.0, "seconds blocked, not seconds of skew"
    (said,) = [problem.what for problem in evidence.problems]
    assert f"{abs(seconds):,.1f} s {'ahead of' if (seconds > 0) != (0 in ranks) else 'behind'} that of rank 0" in said


def test_a_late_rank_is_no_clock_that_is_off(tmp_path: Path) -> None:
    late = [replace(item, takes_s=3.0) if place % 2 == 0 else item for place, item in enumerate([A, B] * 40)]
    write(tmp_path, program(4, {2: late}, [A, B] * 40))
    evidence = by_one_clock(tmp_path)
    assert read(evidence).survey.clocks.ahead_s == {}
    assert confirmed(evidence) == [("straggler", (2,))]


def test_a_late_rank_is_found_behind_a_clock_that_is_off(tmp_path: Path) -> None:
    late = [replace(step, takes_s=3.0) if place % 10 == 0 else step for place, step in enumerate(STEPS)]
    write(tmp_path, program(4, {2: late}, STEPS))
    set_clock(tmp_path, (0, 1), 30)
    assert confirmed(by_one_clock(tmp_path)) == [("straggler", (2,))]


def test_a_pair_is_as_old_as_its_own_clock_says(tmp_path: Path) -> None:
    """A running job of two nodes: its youngest calls are young, whatever the other node's clock says."""
    write(tmp_path, program(2, {}, [*STEPS, A]))
    for rank in (0, 1):  # Both wait in the last call, and nothing says that the job has ended.
        path = tmp_path / f"tr_{rank}"
        dump = safe_pickle.loads(path.read_bytes(), Limits())
        dump["entries"][-1].update(retired=False)
        path.write_bytes(pickle.dumps(dump))
    set_clock(tmp_path, (1,), 60)
    evidence = by_one_clock(tmp_path)
    assert all(finding.cost is None or finding.cost.value < 1.0 for finding in detect(evidence))


def test_calls_with_a_root_say_nothing(tmp_path: Path) -> None:
    """The root leaves a broadcast before the others come: that is no clock."""
    original = [replace(BROADCAST, wait=False)] * 300
    late = [replace(original[0], takes_s=0.05)] * 300
    assert verdict(tmp_path, Job({0: original, 1: late}, backend="gloo")) is not None
    assert read(evidence(tmp_path)).survey.clocks.ahead_s == {}


def test_dumps_beside_the_rings_of_their_ranks_are_of_one_job(tmp_path: Path) -> None:
    """Under `dtk watch` few calls are enough: nothing has to show that the dumps belong together."""
    write(tmp_path, program(2, {1: [A, C]}, [A, B]))
    set_clock(tmp_path, (1,), 30)
    assert "the clocks differ" in str(gather(tmp_path, Limits()).doubt)
    for rank in range(2):
        assert gather(tmp_path, Limits()).doubt
        write_ring(tmp_path / f"rank_{rank:05d}.ring", rank, 2, [FINISHED])
    assert not gather(tmp_path, Limits()).doubt
