"""The pass over the files of all ranks: files without a rank in their name, clocks, and the way back to a rank."""

import copy
from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.histories.read import Reading, read
from diagnostics.evidence.calls import Call, Dump, GroupKey
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.analysis.calls import DEFAULT, START_S, call
from tests.unit.diagnostics.analysis.divergence.programs import Memory
from tests.unit.diagnostics.hang.dumps import Job, Op, evidence, write

GLOO = GroupKey("gloo", "0", "default_pg")


def job(files: list[Memory], **more: Any) -> Evidence:
    return Evidence(Path(), Limits(), files={"simulation": files}, **more)


class File(Memory):
    """Makes its calls anew each time, as a file on disk does: clocks are corrected in place."""

    def load(self) -> list[Dump]:
        return [copy.deepcopy(self.dump)]


def memory(name: str, rank: int | None, calls: list[Call], inside: int | None = None) -> Memory:
    return File(Dump(inside, name, calls[0].key.recorder, calls), name, rank)


def test_a_file_whose_name_says_no_rank_is_placed_by_its_content() -> None:
    reading = read(job([memory("a", None, [call(1)], 3), memory("b", None, [call(1)]), memory("c", 0, [call(1)])]))
    assert sorted(reading.survey.ranks) == [0, 3]
    assert [(problem.file, problem.what) for problem in reading.problems] == [
        ("b", "neither its name nor its content shows which rank it belongs to")
    ]


def test_a_rank_is_read_again_with_stacks_and_oldest_first() -> None:
    reading = read(job([memory("a", 0, [call(2, 20), call(1, 10), call(1, key=GLOO)])]))
    assert [(item.seq, item.site.line if item.site else 0) for item in reading.calls(0, DEFAULT)] == [(1, 10), (2, 20)]
    assert [item.seq for item in reading.calls(0, GLOO)] == [1]
    assert reading.calls(5, DEFAULT) == [] == Reading().calls(0, DEFAULT)


def gloo_ranks(ahead_s: float) -> list[Memory]:
    """Two ranks in step, of which the second one's clock is ahead."""
    return [
        memory(f"rank{rank}", rank, [call(seq, key=GLOO, at_s=START_S + seq + rank * ahead_s) for seq in range(1, 12)])
        for rank in (0, 1)
    ]


@pytest.mark.parametrize("ahead_s", [7200.0, -60.0])
def test_a_clock_that_is_off_is_told_and_corrected(ahead_s: float) -> None:
    reading = read(job(gloo_ranks(ahead_s)))
    (problem,) = reading.problems
    assert problem.harmless and problem.file == "rank1"
    assert f"{abs(ahead_s):,.1f} s {'ahead of' if ahead_s > 0 else 'behind'} that of rank 0" in problem.what
    times = [[item.created_s for item in reading.calls(rank, GLOO)] for rank in (0, 1)]
    assert times[0] == pytest.approx(times[1], abs=0.01)
    assert not read(job(gloo_ranks(ahead_s), doubt="not one job")).problems, "of files of several jobs it is no fault"


def test_clocks_that_agree_are_left_alone() -> None:
    reading = read(job(gloo_ranks(0.1)))
    assert not reading.problems and not reading.survey.clocks.ahead_s


def test_the_world_is_that_of_the_evidence_else_of_the_ranks_seen(tmp_path: Path) -> None:
    write(tmp_path, Job({rank: [Op(line=10)] for rank in range(2)}))
    assert read(evidence(tmp_path, world_size=8)).survey.world() == 8
    assert read(evidence(tmp_path)).survey.world() == 2
