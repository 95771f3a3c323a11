"""Dumps of another time or run among those of one job, and ranks that only look as if theirs were."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.evidence import safe_pickle
from diagnostics.evidence.limits import Limits
from diagnostics.report.model import Report
from tests.unit.diagnostics.hang.dumps import Job, Op, set_clock, write

STEP = Op(takes_s=1.0)


def keep(folder: Path, rank: int, first: int, last: int) -> None:
    """Cut a rank's dump to these positions, as if it was written when the last one had completed."""
    path = folder / f"tr_{rank}"
    dump = safe_pickle.loads(path.read_bytes(), Limits())
    dump["entries"] = dump["entries"][first - 1 : last]
    for counters in dump["pg_status"].values():
        counters |= {"last_enqueued_collective": last, "last_completed_collective": last}
    path.write_bytes(pickle.dumps(dump))


def stopped(world: int, steps: int, late: int, **more: object) -> Job:
    """A job in which one rank does not come to the last call."""
    return Job({rank: [STEP] * (steps - (rank == late)) for rank in range(world)}, **more)  # type: ignore[arg-type]


def is_apart(report: Report, rank: int) -> bool:
    is_blamed = any(rank in cause.ranks for cause in report.root_causes)
    said = [line for entry in report.coverage for line in entry.problems if "disagree" in line]
    assert not (said and is_blamed)
    return any(f"the dumps of rank {rank} " in line for line in said)


@pytest.mark.parametrize("ring", [200, 20])
def test_a_dump_that_was_written_long_before_blames_nobody_for_being_behind(tmp_path: Path, ring: int) -> None:
    write(tmp_path, stopped(4, 200, 3, ring=dict.fromkeys((0, 1, 3), ring)))
    keep(tmp_path, 2, 1, 20)
    report = diagnose(tmp_path)
    assert is_apart(report, 2) and [cause.ranks for cause in report.root_causes] == [(3,)]


@pytest.mark.parametrize("hours", [-20.0, -2.0, -0.2, 0.2, 2.0])
@pytest.mark.parametrize("program", [STEP, replace(STEP, size=16)])
def test_a_dump_of_another_run_is_not_compared(tmp_path: Path, hours: float, program: Op) -> None:
    """As far as that run came, its positions look like those of the others, or like those of another program."""
    job = stopped(5, 21, 2)
    write(tmp_path, job)
    other = tmp_path / "other"
    write(other, Job({rank: [program] * 20 for rank in range(5)}))
    (other / "tr_2").replace(tmp_path / "tr_2")
    for path in (*other.iterdir(), other):
        path.unlink() if path.is_file() else path.rmdir()
    set_clock(tmp_path, (2,), 3600 * hours)
    report = diagnose(tmp_path)
    assert is_apart(report, 2) and not report.root_causes
    assert report.statement.startswith("Ranks 0, 1, 3 and 4 wait for rank 2, which left no readable dump of that time")


def test_one_of_many_is_found(tmp_path: Path) -> None:
    write(tmp_path, stopped(70, 21, 69))
    set_clock(tmp_path, (69,), -600)
    assert is_apart(diagnose(tmp_path), 69)


def test_more_than_a_few_leave_open_which_are_of_the_job(tmp_path: Path) -> None:
    write(tmp_path, stopped(4, 21, 2))
    set_clock(tmp_path, (2, 3), -600)
    report = diagnose(tmp_path)
    assert not report.root_causes and "the ranks are not compared" in report.statement


@pytest.mark.parametrize("ring", [21, 2])
def test_a_rank_that_stopped_there_is_still_blamed(tmp_path: Path, ring: int) -> None:
    write(tmp_path, stopped(4, 21, 2, ring=dict.fromkeys((0, 1, 3), ring)))
    (cause,) = diagnose(tmp_path).root_causes
    assert cause.ranks == (2,)


def test_a_rank_that_came_late_once_is_of_the_job(tmp_path: Path) -> None:
    """Rank 0 evaluates for five minutes before a barrier of a group of its own, and rank 2 stalls later."""
    meet = Op("barrier", line=20, group="1")
    programs = {rank: [STEP] * 20 + [meet] + [STEP] * 20 for rank in range(4)}
    programs[0][20] = replace(meet, takes_s=300.0)
    programs[2] = programs[2][:-1]
    write(tmp_path, Job(programs, groups={"1": [0, 1, 2, 3]}, ring=dict.fromkeys(range(4), 30)))
    (cause,) = diagnose(tmp_path).root_causes
    assert cause.ranks == (2,)
