"""A rank at a call that its peers never made: behind the loop, within it, or in a backward pass that lacks a bucket."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.divergence.explanation import _by_text_alone
from diagnostics.contract.findings import SURE
from diagnostics.evidence.calls import Call, Described, GroupKey, Wire
from diagnostics.evidence.model import Evidence, Frame, RankError
from diagnostics.evidence.readers.flight import FlightFile
from tests.dist.ranks import free_port
from tests.patience import stretched
from tests.unit.diagnostics.hang.dumps import START_NS, Job, Op, Shown, confirmed, detect, evidence, write

AFTER = Op("barrier", line=90, function="main")
ANNOUNCED = [Op("broadcast", 9, 12, dtype="Int"), Op("broadcast", 4, 12, dtype="Int")]
"""What DDP sends when it makes four buckets of eight parameters."""


def backward(*sizes: int) -> list[Op]:
    """One pass: buckets are reduced while it continues, and the host waits for all of them at its end."""
    sent = [Op(size=size, line=12, backward=True, wait=False) for size in sizes]
    return [*sent[:-1], Op(size=sizes[-1], line=12, backward=True)]


def job(world: int, common: list[Op], differing: dict[int, list[Op]], **more: Any) -> Job:
    return Job({**{rank: list(common) for rank in range(world)}, **differing}, **more)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize(
    ("before", "sizes"), [([], (8,)), ([], (8, 9, 7)), (ANNOUNCED, (8, 8, 8, 8)), ([], (8, 8, 8, 8))]
)
def test_a_rank_that_never_entered_the_backward_pass_ran_fewer_steps(
    tmp_path: Path, before: list[Op], sizes: tuple[int, ...], culprit: int, world: int
) -> None:
    step = backward(*sizes)
    played = job(world, [*before, *step * 6], {culprit: [*before, *step * 4, AFTER]}, backend="gloo")
    write(tmp_path, played)
    # Programs save and log on rank 0 alone, in the loop as well as behind it: without their text both stay possible.
    causes = ["uneven_iterations"] if culprit else ["conditional_collective", "uneven_iterations"]
    result = evidence(tmp_path, world_size=world)
    assert confirmed(result) == [(cause, (culprit,)) for cause in causes]
    sure = {finding.cause for finding in detect(result) if finding.status == "confirmed" and finding.confidence >= SURE}
    assert sure == ({"hang.uneven_iterations"} if culprit else set())


@pytest.mark.parametrize(("before", "sizes"), [([], (8, 9, 7, 6)), (ANNOUNCED, (8, 8, 8, 8))])
@pytest.mark.parametrize("issued", [1, 2, 3])
def test_a_rank_that_took_part_in_the_pass_lacks_a_gradient(
    tmp_path: Path, before: list[Op], sizes: tuple[int, ...], issued: int
) -> None:
    step = backward(*sizes)
    played = job(3, [*before, *step * 5], {1: [*before, *step * 4, *step[:issued], AFTER]}, backend="gloo")
    write(tmp_path, played)
    assert confirmed(evidence(tmp_path, world_size=3)) == [("unused_parameters", (1,))]


def test_a_loop_whose_last_calls_repeat_among_themselves(tmp_path: Path) -> None:
    """As FSDP's layers: gathers and scatters, the last ones alike."""
    gather = Op("all_gather", 5, 12, function="train", caller=16)
    scatter = Op("reduce_scatter", 9, 12, function="train", caller=16)
    step = [gather, gather, gather, scatter, scatter, scatter]
    last = Op(size=1, line=14, function="finish", caller=17)
    write(tmp_path, job(3, step * 8, {1: [*step * 6, last]}, backend="gloo"))
    assert confirmed(evidence(tmp_path, world_size=3)) == [("uneven_iterations", (1,))]


INNER, ROUND = Op(line=31, function="run_epoch", caller=48), Op("barrier", line=23, function="maybe_save", caller=50)


@pytest.mark.parametrize(("world", "ranks"), [(2, (0, 1)), (3, (1,))])
def test_who_made_as_many_calls_as_in_the_round_before_left_the_last_one_out(
    tmp_path: Path, world: int, ranks: tuple[int, ...]
) -> None:
    original = [*[INNER] * 4, ROUND] * 4
    skips = [*original[:14], *original[15:]]
    write(tmp_path, job(world, original, {1: skips}, backend="gloo"))
    assert confirmed(evidence(tmp_path, world_size=world)) == [("conditional_collective", ranks)]


@pytest.mark.parametrize("more", [3, 5])
def test_who_ran_the_inner_loop_otherwise_in_the_first_round_ran_other_steps(tmp_path: Path, more: int) -> None:
    rounds = [*[INNER] * more, ROUND, *[INNER] * 4, ROUND]
    write(tmp_path, job(3, [*[INNER] * 4, ROUND] * 2, {1: rounds}, backend="gloo"))
    assert confirmed(evidence(tmp_path, world_size=3)) == [("uneven_iterations", (1,))]


TEXT = """\
def train(rank):
    for step in range(9):
        all_reduce()
        if rank == 1:

            barrier()
            {then}
    barrier()
    for step in range(3):
        pass
"""


def with_text(folder: Path, text: str, played: Job, age_s: float) -> Evidence:
    """The job's dumps, and its program `age_s` seconds older than its calls."""
    program = folder / "train.py"
    program.write_text(text)
    when_s = START_NS / 1e9 - age_s
    os.utime(program, (when_s, when_s))
    for rank, dump in played.play().items():
        for entry in dump["entries"]:
            entry["frames"] = [{**frame, "filename": str(program)} for frame in entry["frames"][1:2]]
        (folder / f"tr_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    result = evidence(folder, world_size=len(played.programs))
    result.files["flight"] = [file for file in result.handles(FlightFile) if file.file.startswith("tr_")]
    return result


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize(
    ("line", "then", "cause"),
    [
        (6, "pass", "conditional_collective"),
        (6, "raise", "conditional_collective"),
        (6, "break", "uneven_iterations"),
        (8, "pass", "uneven_iterations"),
    ],
)
def test_the_programs_text_says_whether_the_call_is_in_the_loop(
    tmp_path: Path, line: int, then: str, cause: str, culprit: int, world: int
) -> None:
    original = [Op(line=3)] * 9
    played = job(world, original, {culprit: [*original[:4], Op("barrier", line=line)]}, backend="gloo")
    assert confirmed(with_text(tmp_path, TEXT.format(then=then), played, 60)) == [(cause, (culprit,))]


@pytest.mark.parametrize(("text", "age_s"), [(TEXT, -60), ("def train(:", 60), ("", 60)])
def test_without_text_of_that_time_both_are_offered(tmp_path: Path, text: str, age_s: float) -> None:
    """Younger than the calls, no Python, other lines: what it says is not of this program."""
    original = [Op(line=3)] * 9
    played = job(3, original, {1: [*original[:4], Op("barrier", line=6)]}, backend="gloo")
    findings = [item for item in detect(with_text(tmp_path, text, played, age_s)) if item.status == "confirmed"]
    assert [(item.cause, item.ranks) for item in findings] == [
        ("hang.conditional_collective", (1,)),
        ("hang.uneven_iterations", (1,)),
    ]
    for finding in findings:
        assert finding.confidence < 0.5 and "the recorded calls do not show which" in finding.summary
        assert sorted(remedy.change.split()[0] for remedy in finding.remedies) == ["make", "make"]


def test_a_function_that_calls_the_one_with_the_loop_is_behind_it(tmp_path: Path) -> None:
    text = (
        "def train(model):\n    for step in range(9):\n        all_reduce()\n\n"
        "def main():\n    train(None)\n    barrier()\n\nmain()\n"
    )
    original = [Op(line=3)] * 9
    played = job(3, original, {1: [*original[:4], Op("all_gather", 2, line=7, function="main")]}, backend="gloo")
    assert confirmed(with_text(tmp_path, text, played, 60)) == [("uneven_iterations", (1,))]


def test_an_if_and_its_else_are_two_branches(tmp_path: Path) -> None:
    text = (
        "def train():\n    for step in range(9):\n        if step:\n"
        "            one()\n        else:\n            two()\n"
    )
    original = [Op(line=6)] * 9
    played = job(3, original, {1: [*original[:4], Op("broadcast", 5, line=4)]}, backend="gloo")
    assert confirmed(with_text(tmp_path, text, played, 60)) == [("collective_mismatch", (1,))]


ROUNDS = """\
def train():
    for step in range(9):
        all_reduce()

def validate():
    all_gather()

def main(rank):
    for epoch in range(3):
        train()
        if {condition}:
            validate()

main(0)
"""


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(("condition", "certain"), [("rank == 0", True), ("epoch % 2", False)])
def test_a_condition_on_one_rank_shows_who_makes_the_call_alone(
    tmp_path: Path, condition: str, certain: bool, world: int
) -> None:
    """Behind an inner loop, in an outer one: the others may be in its next round."""
    original = [Op(line=3, function="train")] * 18
    played = job(
        world, original, {0: [*original[:9], Op("all_gather", 2, line=6, function="validate")]}, backend="gloo"
    )
    findings = detect(with_text(tmp_path, ROUNDS.format(condition=condition), played, 60))
    (finding,) = [item for item in findings if item.status == "confirmed"]
    assert (finding.cause, finding.confidence > 0.9) == ("hang.conditional_collective", certain)


DRAWN = """\
def main(rank):
    setup()
    for step in range(100):
        reduce()
        if {condition}:
            gather()
"""


@pytest.mark.parametrize(("world", "condition"), [(2, "rank == 1"), (3, "random() < 0.05")])
def test_a_branch_later_in_the_loop_shows_who_deviates_before_the_loop_repeats(
    tmp_path: Path, world: int, condition: str
) -> None:
    """Too few rounds for a prediction: a rank at the later line did not skip the first line of the next round."""
    ops = [Op("broadcast", 4, line=2, function="main"), *[Op(line=4, function="main")] * 2]
    uneven = {1: [*ops[:2], Op("all_gather", 2, line=6, function="main")]}
    findings = detect(
        with_text(tmp_path, DRAWN.format(condition=condition), job(world, ops, uneven, backend="gloo"), 60)
    )
    (finding,) = [item for item in findings if item.status == "confirmed"]
    assert (finding.cause, finding.ranks, finding.where[0].line) == ("hang.conditional_collective", (1,), 6)


def test_rounds_say_nothing_of_a_branch_that_comes_after_varying_numbers_of_them(tmp_path: Path) -> None:
    """A checkpoint that each rank begins by its own clock: a rank that saves early did not run fewer steps."""
    first, step, save = (
        Op("broadcast", 4, line=2, function="main"),
        Op(line=4, function="main"),
        Op("all_gather", 2, line=6, function="main"),
    )
    past = [first, *[each for count in (19, 21, 17, 20) for each in (*[step] * count, save)]]
    original, uneven = [*past, *[step] * 20], {1: [*past, *[step] * 18, save]}
    folder = with_text(tmp_path, DRAWN.format(condition="clock.due()"), job(2, original, uneven, backend="gloo"), 120)
    by_cause = {finding.cause: finding for finding in detect(folder) if finding.status == "confirmed"}
    assert by_cause["hang.conditional_collective"].ranks == (1,)
    assert all(value.confidence < SURE for cause, value in by_cause.items() if cause == "hang.uneven_iterations")


@pytest.mark.parametrize(("condition", "term"), [("rank == 0", "source one rank"), ("epoch % 2", "source within")])
def test_the_text_alone_tells_such_a_call_where_no_history_was_recorded(
    tmp_path: Path, condition: str, term: str
) -> None:
    """As from stacks that were taken while the job hung."""
    program = str(tmp_path / "train.py")
    Path(program).write_text(ROUNDS.format(condition=condition))
    os.utime(program, (1, 1))

    def call(*lines: tuple[int, str]) -> Call:
        stack = tuple(Frame(program, line, function) for line, function in lines)
        return Call(GroupKey("gloo", "0", ""), 1, Described(Wire("op", (1,), ()), "op"), False, 2e9, stack=stack)

    explanation = _by_text_alone(call((3, "train"), (10, "main")), call((6, "validate"), (12, "main")))
    assert explanation is not None and (explanation.deviation, explanation.place) == ("insert", "within")
    assert explanation.terms[0].name == term


EVALUATED = """\
import torch.distributed as dist

def main(flag):
    r, w = dist.get_rank(), dist.get_world_size()
    for step in range(4):
        dist.all_reduce()
    {way_in}evaluate()
    dist.barrier()

def evaluate():
    {loop}dist.all_gather()

main(0)
"""
LOOP, TRAINED, DESTROYED = (
    "for batch in batches: ",
    [Op(line=6, function="main")] * 4,
    Op("barrier", line=8, function="main"),
)
GATHER = Op("all_gather", 2, line=11, function="evaluate")


@pytest.mark.parametrize("loop", [LOOP, ""])
@pytest.mark.parametrize("trained", [TRAINED, []])
@pytest.mark.parametrize(
    ("way_in", "world"), [("if r == 0: ", 2), ("if r == 0: ", 3), ("if flag: ", 3), ("if flag and not r: ", 3)]
)
def test_a_loop_that_only_one_side_ever_entered_through_a_branch_is_a_conditional_call(
    tmp_path: Path, way_in: str, world: int, trained: list[Op], loop: str
) -> None:
    played = job(world, [*trained, DESTROYED], {0: [*trained, GATHER]}, backend="gloo")
    text = EVALUATED.format(way_in=way_in, loop=loop)
    assert confirmed(with_text(tmp_path, text, played, 60)) == [("conditional_collective", (0,))]


@pytest.mark.parametrize(("way_in", "entered"), [("", 0), ("if flag: ", 1), ("if flag: ", 3)])
def test_another_round_of_a_loop_that_all_had_entered_is_another_number_of_iterations(
    tmp_path: Path, way_in: str, entered: int
) -> None:
    common = [*TRAINED, *[GATHER] * entered]
    played = job(3, [*common, DESTROYED], {0: [*common, GATHER]}, backend="gloo")
    text = EVALUATED.format(way_in=way_in, loop=LOOP)
    assert confirmed(with_text(tmp_path, text, played, 60)) == [("uneven_iterations", (0,))]


@pytest.mark.parametrize(
    ("way_in", "kinds"),
    [("if r == 0: ", ("added",)), ("if flag: ", ("more_iterations", "added")), ("", ("more_iterations",))],
)
def test_from_stacks_alone_only_a_condition_on_one_rank_shows_who_entered_the_loop(
    tmp_path: Path, way_in: str, kinds: tuple[str, ...]
) -> None:
    program = str(tmp_path / "train.py")
    Path(program).write_text(EVALUATED.format(way_in=way_in, loop=LOOP))
    os.utime(program, (1, 1))

    def call(op: str, *lines: tuple[int, str]) -> Call:
        stack = tuple(Frame(program, line, function) for line, function in (*lines, (13, "<module>")))
        return Call(GroupKey("gloo", "0", ""), 0, Described(Wire(op, (), ()), op), False, 2e9, stack=stack)

    explanation = _by_text_alone(call("barrier", (8, "main")), call("all_gather", (11, "evaluate"), (7, "main")))
    assert explanation is not None and (explanation.kind, *explanation.alternatives) == kinds


def ended(*ranks: int) -> list[RankError]:
    return [RankError(rank, "launcher.log", 25, "", "", exit_code=0) for rank in ranks]


def after_the_end(folder: Path, common: list[Op], differing: list[Op], world: int) -> dict[str, Shown]:
    """Confirmed findings where rank 1 made `odd` and waits, and all others ended in order."""
    write(folder, job(world, common, {1: differing}, backend="gloo"))
    done = ended(*(rank for rank in range(world) if rank != 1))
    findings = detect(evidence(folder, world_size=world, errors=done))
    return {finding.cause.removeprefix("hang."): finding for finding in findings if finding.status == "confirmed"}


@pytest.mark.parametrize("world", [2, 4])
def test_a_call_more_that_fitted_its_peers_is_told_by_its_line(tmp_path: Path, world: int) -> None:
    loop, extra = [Op(line=7, function="step")] * 20, Op(line=4, function="sync_metric")
    findings = after_the_end(tmp_path, loop, [*loop[:11], extra, *loop[11:]], world)
    conditional_collective = findings["conditional_collective"]
    assert (conditional_collective.ranks, conditional_collective.position, conditional_collective.where[0].line) == (
        (1,),
        12,
        4,
    )
    assert set(conditional_collective.victims) == set(range(world)) - {1} and "uneven_iterations" not in findings


def test_a_last_call_of_one_rank_is_told_by_a_vote(tmp_path: Path) -> None:
    loop, extra = [Op(line=7, function="step")] * 20, Op(size=1, line=4, function="sync_metric")
    findings = after_the_end(tmp_path / "four", loop, [*loop, extra], 4)
    assert findings["conditional_collective"].ranks == (1,)
    assert "conditional_collective" not in after_the_end(tmp_path / "two", loop, [*loop, extra], 2)
    findings = after_the_end(tmp_path / "round", loop, [*loop, loop[0]], 4)
    assert findings["uneven_iterations"].ranks == (1,)


def test_a_last_call_whose_line_fitted_others_by_chance_is_told_by_that(tmp_path: Path) -> None:
    """As DDP's buffers in rank 0's evaluation: sent in place of those of the next step, until there is none."""
    step = [Op("broadcast", 4, line=20, function="train_epoch"), Op(line=22, function="train_epoch")]
    elsewhere = [Op("broadcast", 4, line=33, function="validate"), step[1]]
    uneven = [*step * 3, *elsewhere, *step * 2, *elsewhere, *step * 2, elsewhere[0]]
    findings = after_the_end(tmp_path, step * 9, uneven, 2)
    conditional_collective = findings["conditional_collective"]
    assert (conditional_collective.ranks, conditional_collective.position, conditional_collective.where[0].line) == (
        (1,),
        19,
        33,
    )
    assert "2 earlier calls from that line matched other calls of rank 0 by chance" in conditional_collective.summary


def test_a_rank_that_ended_first_is_not_excused(tmp_path: Path) -> None:
    loop = [Op(line=6)] * 20
    write(tmp_path, job(4, loop, {1: loop[:6]}, backend="gloo"))
    shown = detect(evidence(tmp_path, world_size=4, errors=ended(1)))
    rows = {(item.cause, item.ranks) for item in shown if item.status == "confirmed"}
    assert rows == {("hang.rank_exited", (1,)), ("hang.uneven_iterations", (1,))}


@pytest.mark.parametrize("culprit", [0, 3])
def test_neighbours_in_groups_of_their_own_tell_who_left_a_call_out(tmp_path: Path, culprit: int) -> None:
    groups = {"1": [0, 1], "2": [2, 3]}
    calls = {}
    for rank in range(4):
        own = str(1 + rank // 2)
        step = [Op(group=own, line=7), Op(group=own, line=9), Op(size=3, line=10)]
        calls[rank] = step * 6
    del calls[culprit][13]
    write(tmp_path, Job(calls, groups))
    assert confirmed(evidence(tmp_path, world_size=4)) == [("conditional_collective", (culprit,))]


SCRIPT = """\
import os, threading, time
import torch, torch.distributed as dist

def leave(rank):
    time.sleep(3)
    with open(f"tr_{rank}", "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace(True, True, False))
    time.sleep(2)
    os._exit(0)

dist.init_process_group("gloo")
rank = dist.get_rank()
begin = threading.Thread(target=leave, args=(rank,), daemon=True).start
if os.environ["CASE"] == "if":
    for step in range(10):
        if step == 3:
            begin()
        dist.all_reduce(torch.ones(8))
        if rank == 1 and step == 3:
            dist.barrier()
else:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    for step in range(8 if rank == 1 else 10):
        if step == 7:
            begin()
        model(torch.ones(4, 16)).sum().backward()

    dist.barrier()
time.sleep(60)
"""


@pytest.mark.extended
@pytest.mark.parametrize(("case", "cause"), [("if", "conditional_collective"), ("ddp", "uneven_iterations")])
def test_real_ranks_of_gloo(tmp_path: Path, case: str, cause: str) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "CASE": case,
        "TORCH_FR_BUFFER_SIZE": "200", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, str(tmp_path / "job.py")]
    ranks = [subprocess.Popen(command, cwd=tmp_path, env={**environment, "RANK": str(rank)}) for rank in range(2)]
    for process in ranks:
        process.wait(stretched(60))
    result = evidence(tmp_path, world_size=2)
    result.files["flight"] = [file for file in result.handles(FlightFile) if file.file.startswith("tr_")]
    assert confirmed(result) == [(cause, (1,))]


LOGGED = """\
def log():
    {test}:
        all_reduce()
def main():
    for step in range(9):
        for batch in batches:
            for grad in grads: {call}
        log()
"""


@pytest.mark.parametrize(
    ("test", "loop_call", "batches", "cause"),
    [
        ("if step % every == 0", "all_reduce(grad)", "", "conditional_collective"),
        ("with timer", "all_reduce(grad)", "", "uneven_iterations"),  # Nothing lets a rank leave it out.
        ("if step % every == 0", "loss.backward()", "", "uneven_iterations"),  # It makes several calls in one pass.
        ("with timer", "all_reduce(grad)", "for batch in batches:", "uneven_iterations"),
    ],
)
def test_who_goes_on_with_the_passes_of_an_inner_loop_may_have_left_out_the_call_after_it(
    tmp_path: Path, test: str, loop_call: str, batches: str, cause: str
) -> None:
    text = LOGGED.format(test=test, call=loop_call)
    text = text if batches else text.replace("        for batch in batches:\n    ", "        if batches:\n    ")
    gradients = [Op(size=16, line=7, function="main"), Op(size=4, line=7, function="main")]
    metric = Op(size=1, line=3, function="log")
    uneven = {1: [*gradients * 4, gradients[0]]}
    job_files = with_text(tmp_path, text, job(3, [*gradients * 4, metric], uneven, backend="gloo"), 60)
    ((said, ranks),) = confirmed(job_files)
    assert (said, ranks) == (cause, (1,))


def test_a_call_after_a_loop_that_nothing_skips_is_not_left_out(tmp_path: Path) -> None:
    """A rank that runs the loop once more than in each round before made the fewest calls more if it skipped one."""
    gradients = [Op(size=16, line=7, function="main"), Op(size=4, line=7, function="main")]
    metric = Op(size=1, line=3, function="log")
    played = job(3, [*gradients * 4, metric] * 2, {1: [*gradients * 4, metric, *gradients * 5]}, backend="gloo")
    text = LOGGED.format(test="with timer", call="all_reduce(grad)")
    assert confirmed(with_text(tmp_path, text, played, 60)) == [("uneven_iterations", (1,))]


def test_a_loop_before_the_peers_call_was_not_left_but_run_again(tmp_path: Path) -> None:
    """As where a rank tries again to load; a ring keeps no callers, but the text shows who calls the function."""
    text = "def load():\n    while True:\n        barrier()\ndef main():\n    load()\n    for at in all: all_reduce()\n"
    ready, reduced = Op("barrier", line=3, function="load"), Op(line=6, function="main")
    played = job(3, [ready, reduced], {1: [ready, ready]}, backend="gloo")
    findings = [item for item in detect(with_text(tmp_path, text, played, 60)) if item.status == "confirmed"]
    assert [(item.cause, item.ranks, item.confidence < 0.9) for item in findings] == [
        ("hang.uneven_iterations", (1,), True)
    ]
