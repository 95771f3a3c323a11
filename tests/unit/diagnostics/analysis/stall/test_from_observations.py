"""Looks from outside at ranks that stand still or move: who holds up whom, and what two different calls mean."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact, RankError, Stacks, Thread
from diagnostics.evidence.readers.process import Moment
from diagnostics.report.without_cause import processes_text
from tests.unit.diagnostics.analysis.stall.test_stack_evidence import C10D, inside
from tests.unit.diagnostics.hang.dumps import Shown, unexplained

NOW_S = 4e9
"""After any file of the test was written."""
LOOP = (Frame("/job/train.py", 13, "train"),)
WAIT = inside("all_reduce", LOOP)
SLEEP = (Frame("libc.so.6", 0, "clock_nanosleep"), Frame("/job/train.py", 9, "train"))
OWN = (Frame("/job/train.py", 9, "train"),)


def rank(
    number: int,
    frames: tuple[Frame, ...] | list[tuple[Frame, ...]],
    *,
    state: str = "S",
    cpu: float = 0.0,
    switches: int = 0,
    wchan: str = "futex_do_wait",
    **more: Any,
) -> tuple[list[Stacks], list[LogFact]]:
    """One rank seen four times, 4 s apart; `cpu` is the share of a core, `switches` those between two looks."""
    paths = frames if isinstance(frames, list) else [frames] * 4
    times = [NOW_S + 4 * look for look in range(4)]
    moments = [Moment(time, state, cpu * 4 * look, switches * look, wchan) for look, time in enumerate(times)]
    pairs = tuple((moment, moment) for moment in moments)
    fields = {"looks": pairs, "last": moments[-1], "call": {"op": "x", "group": "default"}, "counters": {}} | more
    dumps = [
        Stacks(number, f"stacks/{number}.txt", (Thread("MainThread", path, True),), time)
        for path, time in zip(paths, times, strict=True)
        if path
    ]
    return dumps, [LogFact("process", number, f"process/{number}.json", 0, "", fields, NOW_S + 12)]


def findings_of(*ranks: tuple[list[Stacks], list[LogFact]], errors: tuple[RankError, ...] = ()) -> dict[str, Shown]:
    stacks, facts = [dump for dumps, _ in ranks for dump in dumps], [item for _, facts in ranks for item in facts]
    size = max(fact.rank or 0 for fact in facts) + 1
    evidence = Evidence(Path("nowhere"), Limits(), world_size=size, stacks=stacks, facts=facts, errors=list(errors))
    return {finding.cause.removeprefix("hang."): finding for finding in unexplained(evidence)}


def waiting(*numbers: int, **more: Any) -> list[tuple[list[Stacks], list[LogFact]]]:
    return [rank(number, WAIT, **more) for number in numbers]


def test_a_wait_for_a_key_of_the_store_is_no_collective() -> None:
    """`store.wait(["ckpt_ready_9"])` on rank 1, where rank 0 set `ckpt-ready-9` and went on to backward."""
    native = ("poll", "c10d::detail::SocketImpl::waitForInput", "c10d::TCPStore::doWait", "c10d::PrefixStore::wait")
    key = (*(Frame("libtorch_cpu.so", 0, name) for name in native), Frame("/job/train.py", 17, "train"))
    said = findings_of(*waiting(0), rank(1, key))
    assert list(said) == ["host_stall"] and said["host_stall"].ranks == (1,)
    assert "its host is waiting for a key of the store (train.py:17 in train)" in said["host_stall"].summary


def message(op: str, line: int) -> tuple[Frame, ...]:
    schedule = Frame("/env/torch/distributed/pipelining/schedules.py", 683, "_wait_batch_p2p")
    return (
        (schedule, Frame("/job/train.py", line, "train"))
        if not op
        else inside(op, (Frame("/job/train.py", line, "train"),))
    )


@pytest.mark.parametrize("ops", [("send", "send", "recv", "recv"), ("", "", "", ""), ("recv", "recv", "recv", "recv")])
def test_messages_that_all_ranks_wait_in_are_no_calls_to_compare(ops: tuple[str, ...]) -> None:
    """A peer that is named wrongly, or stages with other numbers of micro-batches: nobody is left to post a half."""
    said = findings_of(*(rank(number, message(op, 11 + 3 * (number < 2))) for number, op in enumerate(ops)))
    assert list(said) == ["p2p_cycle"] and said["p2p_cycle"].ranks == (0, 1, 2, 3)


def test_where_ranks_make_a_group_lines_do_not_tell_who_is_ahead() -> None:
    """Ranks meet in the store for that, and with another number of groups they pass each other there."""
    at = Frame("/job/train.py", 21, "train")
    assert findings_of(*waiting(1, 2), rank(0, inside("new_group", (at,)))) == {}


def test_messages_beside_a_rank_that_works_wait_for_that_one() -> None:
    said = findings_of(rank(0, message("send", 14)), rank(1, message("recv", 11)), rank(2, OWN, cpu=0.9, switches=4))
    assert list(said) == ["host_stall"] and said["host_stall"].ranks == (2,)


@pytest.mark.parametrize(
    ("item", "words", "confidence"),
    [
        (rank(2, SLEEP), "sleeping (train.py:9", 0.95),
        (rank(2, WAIT, state="T"), "stopped by a signal", 0.95),
        (rank(2, OWN, wchan="locks_lock_inode_wait"), "waiting for a lock (train.py:9", 0.95),
        (rank(2, OWN, wchan="some_driver_wait"), "blocked in the kernel (some_driver_wait) (train.py:9", 0.95),
        (rank(2, OWN, cpu=0.9), "computing (train.py:9", 0.6),
    ],
)
def test_the_rank_that_waits_in_nothing_holds_up_the_others(item: Any, words: str, confidence: float) -> None:
    said = findings_of(*waiting(0, 1, 3), item)
    assert set(said) == {"host_stall"}
    assert said["host_stall"].ranks == (2,) and said["host_stall"].confidence == confidence
    assert words in said["host_stall"].summary and "for at least 12 s" in said["host_stall"].summary


def test_the_rank_that_waits_with_a_file_lock_in_its_hands_is_to_blame() -> None:
    """The one that waits for the lock could only reach the call with it."""
    holder = rank(1, WAIT, pid=11)
    waits = [rank(number, OWN, wchan="locks_lock_inode_wait", pid=10 + number, lock_holder=11) for number in (0, 2, 4)]
    said = findings_of(rank(3, WAIT, pid=13), holder, *waits)["host_stall"]
    assert said.ranks == (1,) and set(said.victims) == {0, 2, 3, 4}
    assert "Rank 1 holds the file lock that ranks 0, 2 and 4 wait for" in said.summary
    other = findings_of(*waiting(0, 1, 3), rank(2, OWN, wchan="locks_lock_inode_wait", pid=12, lock_holder=99))
    assert other["host_stall"].ranks == (2,)  # A process that is no rank holds it.


def test_a_job_that_moves_does_not_hang() -> None:
    moving = [OWN, WAIT, OWN, WAIT]
    assert findings_of(*(rank(number, moving, cpu=0.4, switches=30) for number in range(4))) == {}
    assert findings_of(*waiting(0, 1, 2, 3, switches=30)) == {}, (
        "each look met it in the same call, not in the same one"
    )
    assert findings_of(*waiting(0, 1, 3, switches=30), rank(2, moving, cpu=0.4)) == {}, "an uneven load is no hang"


def test_nobody_is_culprits_where_all_wait_in_one_call_or_most_are_outside() -> None:
    assert findings_of(*waiting(0, 1, 2, 3)) == {}
    assert findings_of(*waiting(0), *(rank(number, SLEEP) for number in (1, 2, 3))) == {}


def test_without_stacks_the_kernel_tells_who_sleeps() -> None:
    said = findings_of(*(rank(number, ()) for number in (0, 1, 3)), rank(2, (), wchan="hrtimer_nanosleep"))
    assert said["host_stall"].ranks == (2,) and said["host_stall"].confidence == 0.6
    assert "sleeping" in said["host_stall"].summary


def test_a_thread_that_communicates_for_the_main_one_counts() -> None:
    join = (Frame("/usr/lib/python3.11/threading.py", 1119, "join"), Frame("/job/train.py", 2, "main"))
    dumps, facts = rank(0, join)
    dumps = [replace(dump, threads=(*dump.threads, Thread("trainer", WAIT))) for dump in dumps]
    assert findings_of((dumps, facts), *waiting(1, 3), rank(2, SLEEP))["host_stall"].ranks == (2,)


def test_a_wait_that_only_native_frames_show() -> None:
    native = (Frame("libtorch_cpu.so", 0, "c10d::Work::wait"), Frame("/job/train.py", 21, "train"))
    assert findings_of(*(rank(number, native) for number in (0, 1, 3)), rank(2, SLEEP))["host_stall"].ranks == (2,)


def test_a_wait_within_torch_that_python_frames_alone_show() -> None:
    rebuilding = (Frame("/lib/torch/nn/parallel/distributed.py", 1760, "_pre_forward"), *LOOP)
    said = findings_of(*(rank(number, rebuilding) for number in (0, 1, 3)), rank(2, SLEEP))
    assert set(said) == {"host_stall"} and said["host_stall"].ranks == (2,)


def test_a_rank_that_left_in_order_while_others_wait() -> None:
    lost = rank(1, (), looks=(), last=Moment(NOW_S))
    ended = RankError(1, "process/1.json", 0, "", "ended with exit code 0", exit_code=0, time_s=NOW_S)
    said = findings_of(*waiting(0, 2, 3), lost, errors=(ended,))
    assert set(said) == {"rank_exited"} and said["rank_exited"].ranks == (1,)
    assert findings_of(*waiting(0, 2, 3), lost) == {}, "how it ended is not known"


SCRIPT = """\
import torch.distributed as dist
def train(rank, batches):
    for step in range(9):
        dist.all_reduce(1)
        if rank == 0:
            dist.barrier()
    {leave}
    dist.barrier()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(leave="pass"))
    return path


def at(path: Path, op: str, line: int) -> tuple[Frame, ...]:
    return inside(op, (Frame(str(path), line, "train"),))


def steps(path: Path, step: int) -> dict[str, Any]:
    return {"counters": {(str(path), "train"): {"step": step}}}


def test_a_call_in_a_branch_of_the_loop_is_conditional(script: Path) -> None:
    others = (rank(number, at(script, "all_reduce", 4)) for number in (1, 2, 3))
    said = findings_of(*others, rank(0, at(script, "barrier", 6)))
    assert set(said) == {"conditional_collective"} and said["conditional_collective"].ranks == (0,)
    assert "#" not in said["conditional_collective"].summary, "positions are not known"
    assert {item.kind for item in said["conditional_collective"].evidence} == {"stacks"}


@pytest.mark.parametrize(("line", "ranks"), [(6, (0,)), (8, None)])
def test_a_group_that_the_text_lets_one_rank_make_is_a_conditional_call(
    script: Path, line: int, ranks: tuple[int, ...] | None
) -> None:
    """All ranks of the job must make it; outside of a branch the others may have made it before."""
    others = (rank(number, at(script, "all_reduce", 4)) for number in (1, 2, 3))
    said = findings_of(*others, rank(0, at(script, "new_group", line)))
    assert {cause: finding.ranks for cause, finding in said.items()} == (
        {} if ranks is None else {"conditional_collective": ranks}
    )


def test_of_two_ranks_the_one_in_the_branch_deviates(script: Path) -> None:
    said = findings_of(rank(1, at(script, "all_reduce", 4)), rank(0, at(script, "barrier", 6)))
    assert said["conditional_collective"].ranks == (0,)


@pytest.mark.parametrize(
    ("step", "cause"), [(5, "uneven_iterations"), (7, "conditional_collective"), (None, "uneven_iterations")]
)
def test_the_loops_variable_tells_fewer_rounds_from_a_call_left_out(script: Path, step: int | None, cause: str) -> None:
    more = {} if step is None else steps(script, step)
    others = (rank(number, at(script, "all_reduce", 4), **steps(script, 7)) for number in (0, 2, 3))
    said = findings_of(*others, rank(1, at(script, "barrier", 8), **more))
    assert set(said) == {cause} and said[cause].ranks == (1,)


@pytest.mark.parametrize(
    ("rounds", "culprits"),
    [
        ((7, 7, 7, 7), (1,)),
        ((8, 7, 8, 8), (1,)),  # A round later.
        ((8, 8, 8, 2), None),  # Rank 3 made more calls in each round.
        ((8, 2, 8, 8), (1,)),
        ((2, 8, 8, 2), None),
        ((6, 7, 8, 9), None),  # range(rank, n, world_size).
    ],
)
def test_lines_of_ranks_that_are_rounds_apart_do_not_show_who_diverged(
    script: Path, rounds: tuple[int, ...], culprits: tuple[int, ...] | None
) -> None:
    ranks = [rank(n, at(script, *(("barrier", 6) if n == 1 else ("all_reduce", 4))), **steps(script, step))
             for n, step in enumerate(rounds)]  # fmt: skip
    said = {cause: finding for cause, finding in findings_of(*ranks).items() if finding.confidence > 0.5}
    assert [finding.ranks for finding in said.values()] == ([] if culprits is None else [culprits])
    assert all((finding.confidence > 0.6) == (max(rounds) - min(rounds) < 2) for finding in said.values())


def test_other_groups_cannot_be_compared(script: Path) -> None:
    group = {"call": {"op": "barrier", "group": "other"}}
    others = (rank(number, at(script, "all_reduce", 4)) for number in (1, 2, 3))
    assert findings_of(*others, rank(0, at(script, "barrier", 8), **group)) == {}


def test_where_each_rank_has_one_group_every_call_is_in_it(script: Path) -> None:
    own = {"call": {"op": "barrier", "group": "other"}, "groups": 1}
    others = (rank(number, at(script, "all_reduce", 4), call={}, groups=1) for number in (1, 2, 3))
    said = findings_of(*others, rank(0, at(script, "barrier", 6), **own))
    assert set(said) == {"conditional_collective"} and said["conditional_collective"].ranks == (0,)
    assert said["conditional_collective"].confidence > 0.9


def test_without_the_text_the_odd_rank_is_a_suspicion() -> None:
    frames = (Frame(C10D, 1, "barrier"), Frame("/job/train.py", 25, "main"))
    said = findings_of(*waiting(0, 1, 3), rank(2, frames))
    assert {item.ranks for item in said.values()} == {(2,)} and all(item.confidence < 0.5 for item in said.values())


def test_a_receive_that_nobody_answers() -> None:
    alone = rank(0, inside("recv", (Frame("/job/train.py", 30, "train"),)))
    said = findings_of(*waiting(1, 2, 3), alone)
    assert set(said) == {"p2p_cycle"} and said["p2p_cycle"].ranks == (0,)


def test_an_idle_rank_of_a_job_that_moves_holds_up_nobody() -> None:
    moving = [OWN, WAIT, OWN, WAIT]
    assert findings_of(*(rank(number, moving, cpu=0.9, switches=30) for number in (0, 1, 3)), rank(2, SLEEP)) == {}


def test_a_part_of_the_ranks_does_not_vote(script: Path) -> None:
    seen = [rank(number, at(script, "all_reduce", 4)) for number in (2, 3)] + [rank(0, at(script, "barrier", 6))]
    assert findings_of(*seen) == {}, "what rank 1 does is not known"


@pytest.mark.parametrize("call", [{}, {"op": "barrier", "group": "other"}])
def test_a_call_that_the_text_gives_to_one_rank_is_made_by_no_peer_in_whatever_group(
    script: Path, call: dict[str, str]
) -> None:
    others = [rank(number, at(script, "all_reduce", 4)) for number in (1, 2, 3)]
    (said,) = findings_of(*others, rank(0, at(script, "barrier", 6), call=call)).items()
    assert (said[0], said[1].ranks, said[1].confidence) == ("conditional_collective", (0,), 0.7)


def test_ranks_that_each_have_a_branch_may_use_their_groups_in_any_order(script: Path) -> None:
    text = script.read_text().replace(
        "            dist.barrier()\n",
        "            dist.barrier()\n        if rank == 1:\n            dist.barrier()\n",
    )
    script.write_text(text)
    other = {"op": "barrier", "group": "other"}
    places = {0: ("barrier", 6), 1: ("barrier", 8), 2: ("all_reduce", 4)}
    seen = [rank(number, at(script, *where), call=other if number < 2 else {}) for number, where in places.items()]
    assert findings_of(*seen) == {}


def test_what_is_said_without_a_cause() -> None:
    lost = rank(0, (), looks=(), last=Moment(NOW_S))
    facts = [fact for _, facts in (lost, *waiting(1), rank(2, WAIT, switches=9)) for fact in facts]
    said = processes_text(Evidence(Path("nowhere"), Limits(), facts=facts))
    moved = "rank 0 no longer has a process; rank 2 made progress between the observations"
    assert said == f"{moved}; rank 1 waited for 12 s"
    assert processes_text(Evidence(Path("nowhere"), Limits())) == ""


INIT = (Frame(C10D, 2169, "_new_process_group_helper"), Frame(C10D, 1899, "init_process_group"), *LOOP)


def test_ranks_that_all_wait_in_init_process_group_do_not_find_each_other() -> None:
    said = findings_of(*(rank(number, INIT, groups=0) for number in range(3)))
    assert set(said) == {"rendezvous"} and said["rendezvous"].ranks == ()
    assert (
        said["rendezvous"].confidence == 0.85 and "wait for a rank that was not started" in said["rendezvous"].summary
    )
    # One that moves may be about to meet them, and ranks of other hosts may be on their way.
    assert not findings_of(rank(0, INIT), rank(1, INIT, switches=9), rank(2, INIT))
    assert not findings_of(rank(0, INIT), rank(2, INIT))


def test_ranks_in_one_call_that_name_different_roots(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("for step in range(9):\n    broadcast()\nbarrier()\n")

    def at(number: int, root: int | None, step: int | None = 3) -> tuple[list[Stacks], list[LogFact]]:
        name, line = ("broadcast", 2) if root is not None else ("barrier", 3)
        frames = inside(name, (Frame(str(script), line, "<module>"),))
        call = {"op": name, "group": "default"} | ({} if root is None else {"src": str(root)})
        counters = {} if step is None else {(str(script), "<module>"): {"step": step}}
        return rank(number, frames, call=call, counters=counters)

    said = findings_of(at(0, 0), at(1, 0), at(2, 1))["signature_mismatch"]
    assert (said.ranks, said.confidence) == ((2,), 0.85) and "Rank 2 calls broadcast root 1" in said.summary
    # Ranks 1 and 3 went on: in gloo's tree they could if any of the others differs.
    said = findings_of(at(0, 0), at(1, None), at(2, 1), at(3, None))["signature_mismatch"]
    assert (said.ranks, said.confidence) == ((2,), 0.7)
    said = findings_of(at(0, 0), at(1, 1))["signature_mismatch"]
    assert said.ranks == (0, 1) and "tie" in said.summary
    # A loop that takes each rank as the root in turn, and one whose round is unknown.
    assert "signature_mismatch" not in findings_of(at(0, 0, 3), at(1, 0, 3), at(2, 1, 4))
    assert "signature_mismatch" not in findings_of(at(0, 0, None), at(1, 0, None), at(2, 1, None))
    assert "signature_mismatch" not in findings_of(at(0, 0), at(1, 0), at(2, 0))
    # A variable of another meaning, or a damaged record, names no rank of the job.
    assert "signature_mismatch" not in findings_of(at(0, 0), at(1, 0), at(2, 3))


PACKAGE = """\
def train(self):
    for batch in self.batches:
        self.training_step(batch)
    self.finish()
"""


def test_lines_that_part_in_a_package_show_who_left_its_loop(tmp_path: Path) -> None:
    """The user's frames are those of a step on one side and of `trainer.train()` on the other."""
    package = tmp_path / "site-packages" / "trainer.py"
    package.parent.mkdir()
    package.write_text(PACKAGE)
    outer = Frame("/job/train.py", 30, "main")
    own_step = Frame("/job/train.py", 12, "training_step")

    def at(line: int, *inner: Frame) -> tuple[Frame, ...]:
        return (*inner, Frame(str(package), line, "Trainer.train"), outer)

    backward = (Frame("/lib/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward"),)
    others = [rank(number, (*backward, *at(3, own_step)), groups=1) for number in (0, 2)]
    said = findings_of(*others, rank(1, inside("all_gather", at(4)), groups=1))
    assert set(said) == {"uneven_iterations"} and said["uneven_iterations"].ranks == (1,)
    assert said["uneven_iterations"].confidence == 0.85
    summary = said["uneven_iterations"].summary
    assert "all_gather (trainer.py:4) is matched with backward (train.py:12)" in summary, "the user's line, if it shows"
    # Of one path, no line tells the ranks apart.
    assert findings_of(*others, rank(1, (*backward, *at(3, own_step)), groups=1)) == {}


ONE_LINE = """\
for step in range(9):
    model(1).backward()
    if rank == 0:
        model(1)
"""


@pytest.mark.parametrize(
    ("others", "differing", "world", "words"),
    [
        ("backward", 0, 4, "Rank 0 is still in the forward pass"),
        ("forward", 3, 4, "Rank 3 skipped"),
        ("backward", 1, 2, "Rank 1 is still in the forward pass"),
        ("forward", 1, 2, "Rank 0 is still in the forward pass"),
    ],
)
def test_a_pass_of_the_same_round_shows_who_is_behind_though_one_line_runs_both(
    tmp_path: Path, others: str, differing: int, world: int, words: str
) -> None:
    """Of two ranks, the one that is behind made a call more: a round that is left out leaves out both passes."""
    script = tmp_path / "train.py"
    script.write_text(ONE_LINE)
    line = (Frame(str(script), 2, "<module>"),)
    torch = "/lib/site-packages/torch/nn/"
    forward = (
        Frame(torch + "parallel/distributed.py", 2363, "DistributedDataParallel._distributed_broadcast_coalesced"),
        Frame(torch + "modules/module.py", 1789, "Module._call_impl"),
        Frame("/job/model.py", 7, "Net.forward"),
        *line,
    )
    backward = (Frame("/lib/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward"), *line)
    sides = (backward, forward) if others == "backward" else (forward, backward)

    def job(round_of_odd: int) -> list[tuple[list[Stacks], list[LogFact]]]:
        rounds = {number: round_of_odd if number == differing else 5 for number in range(world)}
        counters = [{(str(script), "<module>"): {"step": step}} for step in rounds.values()]
        return [rank(n, sides[n == differing], call={}, groups=1, counters=counters[n]) for n in range(world)]

    said = findings_of(*job(5))
    assert set(said) == {"conditional_collective"} and not said["conditional_collective"].tie
    shown = said["conditional_collective"]
    assert shown.ranks == (int(words.split()[1]),) and shown.summary.startswith(words)
    if "still" in words:
        who = f"rank {shown.ranks[0]}"
        assert f"a call that only {who} made before was matched" in shown.summary
        assert f"look for the call that only {who} makes before" in shown.remedies[0].change
    assert not any(finding.confidence > 0.5 for finding in findings_of(*job(6)).values()), (
        "the ranks are in different rounds"
    )


def test_ranks_in_both_passes_of_one_line_are_one_side_against_a_rank_elsewhere(tmp_path: Path) -> None:
    """The first ranks of a broadcast's tree are in backward already: they did not leave the loop."""
    script = tmp_path / "train.py"
    script.write_text("while batches:\n    model(1).backward()\nbarrier()\n")

    def at(line: int, *torch: Frame) -> tuple[Frame, ...]:
        return (*torch, Frame(str(script), line, "<module>"))

    forward = (Frame(C10D, 3, "broadcast"), Frame("/lib/site-packages/torch/nn/modules/module.py", 9, "_call_impl"))
    backward = Frame("/lib/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward")
    seen = [rank(0, at(2, *forward)), rank(2, at(2, backward)), rank(3, at(2, *forward))]
    said = findings_of(*seen, rank(1, inside("barrier", at(3))))
    assert set(said) == {"uneven_iterations"} and said["uneven_iterations"].ranks == (1,)
