"""How a simulated rank ends: in processes of their own, as what is around it changes the process for good."""

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

from dtk.errors import DtkError
from dtk.preflight.calls import NEW_GROUP, Record
from dtk.preflight.exchange import SimulatedRank
from dtk.preflight.pool import Collected, simulate
from dtk.preflight.sandbox import MAX_ERRORS, EnoughError, simulate_rank

STEPS = 2


def played(play: Callable[[SimulatedRank], None], limit_s: float = 30.0) -> Record:
    """The record of rank 0 of 2, which is to do two steps."""
    collected = Collected()
    body = partial(simulate_rank, world_size=2, steps=STEPS, limit_s=limit_s, play=play)
    simulate([0], body, collected, 1, limit_s)
    return collected.records[0]


def all_steps(simulated: SimulatedRank) -> None:
    simulated.step = STEPS


def raises(simulated: SimulatedRank) -> None:
    raise ValueError("no such file")


def enough(simulated: SimulatedRank) -> None:
    simulated.step = STEPS
    raise EnoughError


def exits(code: object) -> Callable[[SimulatedRank], None]:
    def play(simulated: SimulatedRank) -> None:
        simulated.step = STEPS
        sys.exit(code)  # type: ignore[arg-type]

    return play


def kills(number: int) -> Callable[[SimulatedRank], None]:
    return lambda simulated: os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("play", "kind", "code", "name"),
    [
        (all_steps, "finished", 0, ""),
        (enough, "finished", 0, ""),
        (lambda simulated: None, "exited", 0, ""),  # Before its steps were done.
        (exits(None), "finished", 0, ""),
        (exits(3), "exited", 3, ""),
        (exits("a message"), "exited", 1, ""),
        (lambda simulated: os._exit(4), "exited", 4, ""),
        (kills(signal.SIGKILL), "killed", 0, "SIGKILL"),
        (lambda simulated: os.abort(), "killed", 0, "SIGABRT"),
    ],
)
def test_ends(play: Callable[[SimulatedRank], None], kind: str, code: int, name: str) -> None:
    end = played(play).end
    assert (end.kind, end.code, end.signal) == (kind, code, name)


def test_an_exception_is_kept_with_its_frames_and_its_traceback() -> None:
    record = played(raises)
    error = record.end.error
    assert error is not None and (record.end.kind, error.type, error.message) == (
        "raised",
        "ValueError",
        "no such file",
    )
    assert (error.frames[0].function, error.frames[0].file) == ("raises", __file__)
    assert "ValueError: no such file" in record.errors


def test_a_rank_that_does_not_end_is_stuck_where_it_stands() -> None:
    def sleeps(simulated: SimulatedRank) -> None:
        simulated.step = 1
        time.sleep(60)

    end = played(sleeps, limit_s=0.3).end
    assert (end.kind, end.step) == ("stalled", 1)
    assert end.stack[0].function == "sleeps"


def test_output_is_discarded_and_errors_are_kept_up_to_a_limit(capfd: pytest.CaptureFixture[str]) -> None:
    def writes(simulated: SimulatedRank) -> None:
        print("to nobody")
        os.write(1, b"to nobody either")
        sys.stderr.write("kept")
        for _ in range(40):
            sys.stderr.write("x" * (MAX_ERRORS // 20))

    errors = played(writes).errors
    assert errors.startswith("keptx") and MAX_ERRORS <= len(errors) < 1.1 * MAX_ERRORS
    assert "nobody" not in capfd.readouterr().out


def test_a_process_that_the_rank_started_may_end_itself() -> None:
    def forks(simulated: SimulatedRank) -> None:
        simulated.step = STEPS
        child = os.fork()
        if not child:
            os._exit(5)
        sys.stderr.write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))

    record = played(forks)
    assert (record.end.kind, record.errors) == ("finished", "5")


def test_what_makes_the_job_impossible_is_for_the_user() -> None:
    def impossible(simulated: SimulatedRank) -> None:
        raise DtkError("no process group", "none was made", "make one")

    with pytest.raises(DtkError, match="no process group"):
        played(impossible)


def test_groups_are_recorded_whatever_backend_is_named() -> None:
    def joins(simulated: SimulatedRank) -> None:
        dist.init_process_group("nccl", rank=0, world_size=2)
        pair = dist.new_group([0, 1], group_desc="both")
        dist.all_reduce(torch.ones(3), group=pair)
        simulated.step = STEPS

    record = played(joins)
    assert [entry.op for entry in record.issued()] == [NEW_GROUP, "all_reduce"]
    assert record.new_groups == (((0, 1), "both"),)
    assert record.groups[record.issued()[1].group].ranks == (0, 1)
    assert record.issued()[1].site.startswith(f"{__file__}:")
