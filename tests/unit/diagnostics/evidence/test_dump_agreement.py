"""Dumps of two jobs that ran shortly after each other, and what only looks like that: late ranks."""

from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.contract.formatting import Phrase
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.report.overview import headline
from tests.unit.diagnostics.hang.dumps import Job, Op, detect, set_clock, write

A, B, C = Op(line=10), Op("all_gather", 16, 20), Op("barrier", line=30)


def same(world: int, program: list[Op]) -> dict[int, list[Op]]:
    return {rank: list(program) for rank in range(world)}


def doubt(folder: Path) -> Phrase | None:
    return gather(folder, Limits()).doubt


@pytest.mark.parametrize("ranks", [(0, 1), (1, 2), (3,)])
def test_two_jobs_forty_seconds_apart_are_not_compared(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    write(tmp_path, Job({**same(4, [A, B]), 1: [A, C]}, backend="gloo"))
    assert not doubt(tmp_path)
    set_clock(tmp_path, ranks, 40)
    evidence = gather(tmp_path, Limits())
    assert evidence.doubt is not None
    assert {evidence.doubt.figures["early"], evidence.doubt.figures["late"]} == {ranks, tuple({0, 1, 2, 3} - {*ranks})}
    assert "s after rank" in str(evidence.doubt) and "of different jobs, or the clocks differ" in str(evidence.doubt)
    assert {finding.status for finding in detect(evidence)} == {"undecided"}


def test_the_report_says_so_and_is_undecided(tmp_path: Path) -> None:
    from diagnostics.diagnose import diagnose

    write(tmp_path, Job({**same(4, [A, B]), 1: [A, C]}, backend="gloo"))
    set_clock(tmp_path, (0, 1), 40)
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    assert headline(report) == "the dumps may be of different jobs, so the ranks are not compared"
    assert any(note.startswith("Ranks 0 and 1 issued #1 40.0 s after ranks 2 and 3") for note in report.notes)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_late_rank_is_of_the_same_job(tmp_path: Path, backend: str, at: int) -> None:
    program = [A, B, A, C]
    late = [replace(item, takes_s=30.0) if place == at else item for place, item in enumerate(program)]
    write(tmp_path, Job({**same(4, program), 2: late}, backend=backend))
    assert not doubt(tmp_path)


def test_a_rank_late_in_every_step_whose_peers_run_ahead(tmp_path: Path) -> None:
    step = [replace(A, wait=False), replace(B, wait=False), C]
    late = [replace(step[0], takes_s=5.0), *step[1:]]
    write(tmp_path, Job({**same(4, step * 3), 2: late * 3}, backend="gloo"))
    assert not doubt(tmp_path)


def test_clocks_that_differ_by_less_than_a_step_say_nothing(tmp_path: Path) -> None:
    write(tmp_path, Job({**same(4, [A, B, A]), 1: [A, C]}, backend="gloo"))
    set_clock(tmp_path, (0, 1), 1.0)
    assert not doubt(tmp_path)
