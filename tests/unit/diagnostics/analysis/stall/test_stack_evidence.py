"""Jobs without any record of calls: what the places of the ranks show, and what they do not."""

import time
from pathlib import Path

import pytest

from diagnostics.analysis.stall.stack_evidence import InCollective, compared
from diagnostics.analysis.symptoms.gather import symptoms
from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact, RankError, Stacks, Thread
from tests.unit.diagnostics.hang.dumps import Shown, detect

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py"
LOOP = (Frame("/job/train.py", 13, "train"), Frame("/job/train.py", 23, "main"))
AFTER = (Frame("/job/train.py", 25, "main"),)


def inside(op: str, path: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return (Frame(C10D, 3252, op), Frame(LOGGER, 83, "wrapper"), *path)


def gave_up(rank: int, frames: tuple[Frame, ...]) -> RankError:
    text = "[unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
    return RankError(rank, f"{rank}/stderr.log", 1, "RuntimeError", text, frames)


def stack(rank: int, frames: tuple[Frame, ...]) -> Stacks:
    return Stacks(rank, f"stack_{rank}.txt", (Thread("MainThread", frames, True),))


def timeout(rank: int = 0) -> LogFact:
    return LogFact("gloo_timeout", rank, "log", 1, "Timed out waiting 6000ms for recv operation to complete")


def findings_of(**evidence: object) -> dict[str, Shown]:
    whole = Evidence(Path("nowhere"), Limits(), **evidence)  # type: ignore[arg-type]
    return {finding.cause.removeprefix("hang."): finding for finding in detect(whole)}


@pytest.mark.parametrize("as_stacks", [False, True])
def test_ranks_in_different_collectives_are_named_and_left_open(as_stacks: bool) -> None:
    frames = {0: inside("all_reduce", LOOP), 1: inside("barrier", AFTER), 2: inside("all_reduce", LOOP)}
    of_stacks = {"stacks": [stack(rank, frame) for rank, frame in frames.items()], "facts": [timeout()]}
    shown = of_stacks if as_stacks else {"errors": [gave_up(rank, frame) for rank, frame in frames.items()]}
    assert not [finding for finding in findings_of(**shown).values() if finding.status == "confirmed"]
    assert stood(**shown) == {("all_reduce", "train.py:13"): (0, 2), ("barrier", "train.py:25"): (1,)}


PIPELINE = """\
def train(rank, steps):
    for step in range(steps):
        if rank == 0:
            schedule.step(batch)
        elif rank == 2:
            schedule.step(target=labels)
        else:
            schedule.step()
    dist.barrier()
"""


def test_stages_in_branches_of_one_step_are_one_side_against_who_left_the_loop(tmp_path: Path) -> None:
    (script := tmp_path / "train.py").write_text(PIPELINE)
    places = {0: ("step", 4), 1: ("step", 8), 2: ("barrier", 9)}
    inside = {
        rank: InCollective(
            op, site := Frame(str(script), line, "train"), "stacks", "s.txt", None, (site,), time.time() + 1
        )
        for rank, (op, line) in places.items()
    }
    divergence = compared(inside, 3)
    assert divergence is not None
    assert (divergence.kind, divergence.culprits) == ("fewer_iterations", (2,))


EPOCHS = """\
def main(rank, epochs):
    for epoch in range(epochs):
        for batch in loader:
            model(batch).backward()
        {condition}barrier()
"""


@pytest.mark.parametrize("condition, confirmed", [("", {"uneven_iterations": (0,)}), ("if epoch in evaluated: ", {})])
def test_who_is_still_in_an_inner_loop_runs_more_rounds(
    tmp_path: Path, condition: str, confirmed: dict[str, tuple[int, ...]]
) -> None:
    (script := tmp_path / "train.py").write_text(EPOCHS.format(condition=condition))
    lines = {rank: (Frame(str(script), 5 if rank else 4, "main"),) for rank in range(3)}
    errors = [gave_up(rank, inside("barrier" if rank else "all_reduce", line)) for rank, line in lines.items()]
    for error in errors:  # Its time is that of the latest call.
        (log := tmp_path / error.file).parent.mkdir()
        log.touch()
    findings = detect(Evidence(tmp_path, Limits(), errors=errors))
    said = {finding.cause: finding.ranks for finding in findings if finding.status == "confirmed"}
    assert said == {f"hang.{cause}": ranks for cause, ranks in confirmed.items()}


def test_receives_at_two_lines_do_not_disagree(tmp_path: Path) -> None:
    """Each of them is matched with a send of its own, so the lines have no position in common."""
    script = tmp_path / "train.py"
    script.write_text(
        "def main(rank):\n    for step in range(9):\n        if rank == 0:\n            recv(x, 2)\n        else:\n"
        "            recv(x, 0)\n"
    )
    errors = [gave_up(rank, inside("recv", (Frame(str(script), 6 if rank else 4, "main"),))) for rank in range(3)]
    for error in errors:
        (log := tmp_path / error.file).parent.mkdir()
        log.touch()
    findings = detect(Evidence(tmp_path, Limits(), errors=errors, facts=[timeout(rank) for rank in range(3)]))
    assert {finding.cause for finding in findings if finding.confidence > 0} == {"hang.p2p_cycle"}
    state = symptoms(Evidence(tmp_path, Limits(), errors=errors, facts=[timeout(rank) for rank in range(3)]))
    assert state is not None and len(state.waits) == 2 and state.at_other_calls == ()


def stood(**evidence: object) -> dict[tuple[str, str], tuple[int, ...]]:
    """Where the first screen says that ranks stand."""
    seen = symptoms(Evidence(Path("nowhere"), Limits(), **evidence))  # type: ignore[arg-type]
    assert seen is not None
    return {(wait.op, wait.site): wait.ranks for wait in seen.waits}


def test_an_error_of_a_functional_collective_says_where_its_rank_stood() -> None:
    """DTensor waits in an operator of torch, which no frame of distributed_c10d shows."""
    torch = "/venv/lib/python3.11/site-packages/torch/"
    wait = Frame(f"{torch}distributed/_functional_collectives.py", 142, "wait_tensor")
    waits = (Frame(f"{torch}_ops.py", 1279, "__call__"), wait, *LOOP)
    errors = [gave_up(rank, inside("barrier", AFTER) if rank == 1 else waits) for rank in range(3)]
    said = stood(errors=errors, facts=[timeout(rank) for rank in range(3)])
    assert said == {("a functional collective", "train.py:13"): (0, 2), ("barrier", "train.py:25"): (1,)}


def test_an_error_of_the_backward_pass_says_where_its_rank_stood() -> None:
    engine = Frame("/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward")
    frames = (engine, Frame("/job/train.py", 31, "run_epoch"), Frame("/job/train.py", 48, "main"))
    there = inside("barrier", AFTER)
    said = stood(errors=[gave_up(0, there), gave_up(1, frames), gave_up(2, there)])
    assert said == {("barrier", "train.py:25"): (0, 2), ("backward", "train.py:31"): (1,)}


def test_ranks_that_gave_up_in_one_place_do_not_differ() -> None:
    assert stood(errors=[gave_up(rank, inside("all_reduce", LOOP)) for rank in range(3)]) == {}


def test_who_ended_by_itself_is_the_cause_wherever_others_stand() -> None:
    mine = RankError(1, "1/stderr.log", 1, "ValueError", "bad batch", AFTER)
    said = findings_of(errors=[gave_up(0, inside("all_reduce", LOOP)), mine, gave_up(2, inside("barrier", AFTER))])
    assert {item.cause: item.ranks for item in said.values() if item.status == "confirmed"} == {
        "hang.rank_raised": (1,)
    }


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
    host_stall = findings_of(stacks=stacks, facts=facts)["host_stall"]
    assert host_stall.status == status
    if status == "confirmed":
        assert (host_stall.ranks, host_stall.victims) == ((1,), (0, 2))
        assert "its host is waiting for a queue (train.py:18 in save)" in host_stall.summary


TIMED_OUT = (
    "[rank{0}]:[E1130 10:10:2{0}.164985384 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=640000, NumelOut=640000, Timeout(ms)=600000) ran for "
    "600008 milliseconds before timing out.\n"
)
IN_QUEUE = (
    "Thread 0x00007f01 (most recent call first):\n"
    '  File "/usr/lib/python3.11/queue.py", line 171 in get\n'
    '  File "/src/data.py", line 33 in __next__\n'
    '  File "/src/train.py", line 40 in <module>\n'
)


@pytest.mark.parametrize("positions", [(57, 57, 57), (57, 57, 58)])
def test_the_stack_of_the_only_rank_that_no_watchdog_reports(tmp_path: Path, positions: tuple[int, ...]) -> None:
    """Unless the watchdogs report different calls, which are to be compared first."""
    (tmp_path / "job.log").write_text("".join(TIMED_OUT.format(rank, at) for rank, at in enumerate(positions)))
    (tmp_path / "rank3.txt").write_text(IN_QUEUE)
    rows = [(root.cause, root.ranks, root.victims) for root in diagnose(tmp_path).root_causes]
    expected = [("hang.host_stall", (3,), (0, 1, 2))]
    assert rows == expected if len({*positions}) == 1 else expected[0] not in rows


FETCHING = (Frame("/lib/python3.11/socket.py", 706, "readinto"), Frame("/job/train.py", 61, "fetch"))


@pytest.mark.parametrize(
    ("codes", "stacks", "confirmed_late"),
    [
        ((17, 17, 17), 3, True),
        ((1, 1, 1), 3, True),
        ((17, 17, 1), 3, False),  # One ended in another way, maybe before.
        ((17, 17, 17), 2, False),  # Not all dumped their stacks.
        ((0, 0, 0), 3, False),
        ((17, 17), 3, False),
        ((17, 17, 17), 6, False),  # Dumps are taken regularly.
    ],
)
def test_all_ranks_that_dumped_their_stacks_and_ended_alike_had_given_up(
    codes: tuple[int, ...], stacks: int, confirmed_late: bool
) -> None:
    frames = [inside("all_reduce", LOOP), FETCHING, inside("all_reduce", LOOP)]
    shown = {
        "stacks": [stack(rank % 3, path) for rank, path in enumerate([*frames, *frames][:stacks])],
        "world_size": 3,
    }
    ends = [RankError(rank, "launcher.log", 9 + rank, "", "", exit_code=code) for rank, code in enumerate(codes)]
    findings = findings_of(**shown, errors=ends)
    confirmed = {cause: finding.ranks for cause, finding in findings.items() if finding.status == "confirmed"}
    assert (confirmed == {"host_stall": (1,)}) == confirmed_late and (confirmed_late or "host_stall" not in confirmed)


@pytest.mark.parametrize(("codes", "count"), [((17, 17, 17), 1), ((17, 17, 1), 0)])
def test_then_a_rank_in_user_code_had_not_come_either(codes: tuple[int, ...], count: int) -> None:
    frames = [inside("all_reduce", LOOP), FETCHING[1:], inside("all_reduce", LOOP)]
    ends = [RankError(rank, "launcher.log", 9 + rank, "", "", exit_code=code) for rank, code in enumerate(codes)]
    findings = findings_of(stacks=[stack(rank, path) for rank, path in enumerate(frames)], world_size=3, errors=ends)
    late = [findings["host_stall"]] if findings["host_stall"].status == "confirmed" else []
    assert [(finding.ranks, finding.confidence) for finding in late] == [((1,), 0.6)] * count
