"""Jobs without any record of calls: what the places of the ranks show, and what they do not."""

from pathlib import Path

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact, RankError, Stacks, Thread
from tests.unit.diagnostics.hang.dumps import Shown, detect

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py"
LOOP = (Frame("/job/train.py", 13, "train"), Frame("/job/train.py", 23, "main"))
AFTER = (Frame("/job/train.py", 25, "main"),)
ASYMMETRIC = {"uneven_iterations", "conditional_collective", "collective_mismatch"}


def inside(op: str, path: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return (Frame(C10D, 3252, op), Frame(LOGGER, 83, "wrapper"), *path)


def gave_up(rank: int, frames: tuple[Frame, ...]) -> RankError:
    text = "[unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
    return RankError(rank, f"{rank}/stderr.log", 1, "RuntimeError", text, frames)


def stack(rank: int, frames: tuple[Frame, ...]) -> Stacks:
    return Stacks(rank, f"stack_{rank}.txt", (Thread("MainThread", frames, True),))


def timeout(rank: int = 0) -> LogFact:
    return LogFact("gloo_timeout", rank, "log", 1, "Timed out waiting 6000ms for recv operation to complete")


def found(**evidence: object) -> dict[str, Shown]:
    whole = Evidence(Path("nowhere"), Limits(), **evidence)  # type: ignore[arg-type]
    return {one.cause.removeprefix("hang."): one for one in detect(whole)}


@pytest.mark.parametrize("as_stacks", [False, True])
def test_ranks_in_different_collectives_are_named_and_left_open(as_stacks: bool) -> None:
    frames = {0: inside("all_reduce", LOOP), 1: inside("barrier", AFTER), 2: inside("all_reduce", LOOP)}
    if as_stacks:
        said = found(stacks=[stack(rank, one) for rank, one in frames.items()], facts=[timeout()])
    else:
        said = found(errors=[gave_up(rank, one) for rank, one in frames.items()])
    assert not [one for one in said.values() if one.status == "confirmed"]
    assert {cause for cause, one in said.items() if "is in barrier (train.py:25)" in one.summary} == ASYMMETRIC
    one = said["uneven_iterations"]
    assert one.summary.startswith("Rank 1 is in barrier (train.py:25) while ranks 0 and 2 are in all_reduce")
    assert "the calls before barrier (train.py:25) on rank 1" in one.missing


def test_an_error_of_a_functional_collective_says_where_its_rank_stood() -> None:
    """DTensor waits in an operator of torch, which no frame of distributed_c10d shows."""
    torch = "/venv/lib/python3.11/site-packages/torch/"
    wait = Frame(f"{torch}distributed/_functional_collectives.py", 142, "wait_tensor")
    waits = (Frame(f"{torch}_ops.py", 1279, "__call__"), wait, *LOOP)
    errors = [gave_up(rank, inside("barrier", AFTER) if rank == 1 else waits) for rank in range(3)]
    suspected = found(errors=errors, facts=[timeout(rank) for rank in range(3)])
    said = " ".join(one.summary for one in suspected.values())
    assert "Rank 1 is in barrier (train.py:25)" in said
    assert "a functional collective (train.py:13)" in said


def test_an_error_of_the_backward_pass_says_where_its_rank_stood() -> None:
    engine = Frame("/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward")
    frames = (engine, Frame("/job/train.py", 31, "run_epoch"), Frame("/job/train.py", 48, "main"))
    there = inside("barrier", AFTER)
    said = found(errors=[gave_up(0, there), gave_up(1, frames), gave_up(2, there)])
    assert said["conditional_collective"].summary.startswith(
        "Rank 1 is in backward (train.py:31) while ranks 0 and 2 are in barrier"
    )


def test_ranks_in_one_place_and_those_that_ended_by_themselves_say_nothing_of_it() -> None:
    same = [gave_up(rank, inside("all_reduce", LOOP)) for rank in range(3)]
    mine = RankError(1, "1/stderr.log", 1, "ValueError", "bad batch", AFTER)
    for errors in (same, [same[0], mine, gave_up(2, inside("barrier", AFTER))]):
        assert not [one for one in found(errors=errors).values() if "Which calls came before" in one.summary]


WAITS = (Frame("/usr/lib/python3.11/threading.py", 327, "wait"), Frame("/usr/lib/python3.11/queue.py", 171, "get"))


@pytest.mark.parametrize(
    ("facts", "mine", "status"),
    [
        ([timeout()], (*WAITS, Frame("/job/train.py", 18, "save")), "confirmed"),
        ([], (*WAITS, Frame("/job/train.py", 18, "save")), "undecided"),  # every rank is somewhere at any moment
        ([timeout()], (Frame("/job/train.py", 18, "save"),), "undecided"),
    ],
)
def test_a_host_outside_the_collective_of_all_others(
    facts: list[LogFact], mine: tuple[Frame, ...], status: str
) -> None:
    stacks = [stack(0, inside("all_reduce", LOOP)), stack(1, mine), stack(2, inside("all_reduce", LOOP))]
    one = found(stacks=stacks, facts=facts)["host_stall"]
    assert one.status == status
    if status == "confirmed":
        assert (one.ranks, one.victims) == ((1,), (0, 2))
        assert "its host is waiting for a queue (train.py:18 in save)" in one.summary
