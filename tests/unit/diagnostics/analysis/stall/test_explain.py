"""Hang causes on played jobs: who is blamed, who is only a victim, and what is a tie."""

import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from diagnostics.analysis.divergence.explanation import explain
from diagnostics.analysis.divergence.identity import differing_parts
from diagnostics.analysis.stall.explain import Stall, explain as explain_stall
from diagnostics.causes.hang.straggler import late_rank
from diagnostics.evidence.calls import Call, Described, Dump, GroupKey, Wire, describe
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact, RankError, Stacks, Thread
from diagnostics.evidence.readers.flight import FlightFile
from tests.unit.diagnostics.analysis.divergence.programs import Case, Memory, diverge, histories, key, plant
from tests.unit.diagnostics.hang.dumps import Job, Op, confirmed, detect, diagnose, evidence, write

A, B, C = Op(line=10), Op("all_gather", 16, 20), Op("barrier", line=30)
STEP = [A, B]


def same(world: int, program: list[Op]) -> dict[int, list[Op]]:
    return {rank: list(program) for rank in range(world)}


def job(world: int, common: list[Op], differing: dict[int, list[Op]], **more: object) -> Job:
    return Job({**same(world, common), **differing}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("culprit", [0, 2, 3])
def test_another_operation(tmp_path: Path, backend: str, culprit: int) -> None:
    uneven = {culprit: [*STEP, Op("broadcast", 8, 11)]}
    assert diagnose(tmp_path, job(4, [*STEP, Op(line=12)], uneven, backend=backend)) == [
        ("collective_mismatch", (culprit,))
    ]


@pytest.mark.parametrize("differing", [Op(size=9), Op(dtype="BFloat16")])
def test_other_arguments_at_the_same_line(tmp_path: Path, differing: Op) -> None:
    assert diagnose(tmp_path, job(4, [*STEP, A], {1: [*STEP, differing]})) == [("signature_mismatch", (1,))]


def test_another_layout_of_as_many_elements_is_no_mismatch(tmp_path: Path) -> None:
    played = job(2, [A, C], {})
    write(tmp_path, played)
    dumps = played.play()
    assert all(entry["retired"] for dump in dumps.values() for entry in dump["entries"])
    for entry in dumps[1]["entries"][:1]:
        entry["input_sizes"] = [[2, 4]]
    import pickle

    (tmp_path / "tr_1").write_bytes(pickle.dumps(dumps[1]))
    assert confirmed(evidence(tmp_path)) == []


@pytest.mark.parametrize(
    ("world", "differing", "culprits"), [(2, [1], (0, 1)), (4, [1, 3], (0, 1, 2, 3)), (5, [1, 3], (1, 3))]
)
def test_a_tie_stays_a_tie(tmp_path: Path, world: int, differing: list[int], culprits: tuple[int, ...]) -> None:
    played = job(world, [A, Op(line=12)], {rank: [A, Op("broadcast", 8, 11)] for rank in differing})
    write(tmp_path, played)
    findings = [finding for finding in detect(evidence(tmp_path)) if finding.status == "confirmed"]
    assert [(finding.cause, finding.ranks) for finding in findings] == [("hang.collective_mismatch", culprits)]
    assert ("tie" in findings[0].summary) == (2 * len(differing) == world)


def test_a_skipped_call_is_found_by_content_though_every_later_one_differs(tmp_path: Path) -> None:
    tail = [Op("all_gather", size, 40 + size, wait=False) for size in (1, 2, 3, 4)]
    ops = [*STEP, Op(line=35, wait=False), *tail]
    write(tmp_path, job(4, ops, {2: [*STEP, *tail]}))
    result = next(finding for finding in detect(evidence(tmp_path)) if finding.status == "confirmed")
    assert (result.cause, result.ranks) == ("hang.conditional_collective", (2,))
    assert "skipped all_reduce [8] float32 (#3, train.py:35)" in result.summary


def test_an_extra_call_in_a_loop(tmp_path: Path) -> None:
    extra = Op(size=1, line=50, function="log_metrics")
    assert diagnose(tmp_path, job(4, STEP * 4, {0: [*STEP * 3, extra, *STEP]})) == [("conditional_collective", (0,))]


def test_one_step_fewer_and_one_step_more(tmp_path: Path) -> None:
    assert diagnose(tmp_path / "a", job(4, [*STEP * 4, C], {1: [*STEP * 3, C]})) == [("uneven_iterations", (1,))]
    assert diagnose(tmp_path / "b", job(4, [*STEP * 4, C], {1: [*STEP * 5, C]})) == [("uneven_iterations", (1,))]


def test_a_bucket_that_never_became_ready(tmp_path: Path) -> None:
    buckets = [Op(size=size, line=60, backward=True) for size in (100, 200, 300)]
    loss = Op(size=1, line=70)
    played = job(2, [*buckets, loss] * 3, {1: [*buckets, loss, *buckets[:2], loss, *buckets, loss]})
    assert diagnose(tmp_path, played) == [("unused_parameters", (1,))]


@pytest.mark.parametrize("kept", [{}, {0: 6, 1: 11, 2: 5, 3: 40}, {3: 3}])
def test_rings_that_wrapped_at_different_places_line_up(tmp_path: Path, kept: dict[int, int]) -> None:
    ops = [*STEP * 30, Op(line=12)]
    played = job(4, ops, {3: [*STEP * 30, Op("broadcast", 8, 11)]}, ring=kept)
    assert diagnose(tmp_path, played) == [("collective_mismatch", (3,))]


def test_sub_groups_are_voted_on_among_their_members_only(tmp_path: Path) -> None:
    groups = {"1": [0, 1], "2": [2, 3, 4]}
    left, right = Op(group="1"), Op(group="2", line=11)
    programs = {0: [left, C], 1: [left, C], 2: [right, right, C], 3: [right, right, C]}
    programs[4] = [right, Op(group="2", line=11, size=77), C]
    assert diagnose(tmp_path, Job(programs, groups)) == [("signature_mismatch", (4,))]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_circle_over_two_groups(tmp_path: Path, backend: str) -> None:
    first, second = Op(group="1", line=11), Op(group="2", line=12)
    played = Job(
        {0: [first, second, C], 1: [second, first, C], 2: [C], 3: [C]}, {"1": [0, 1], "2": [0, 1]}, backend=backend
    )
    write(tmp_path, played)
    findings = [finding for finding in detect(evidence(tmp_path)) if finding.status == "confirmed"]
    assert [(finding.cause, finding.ranks, finding.victims) for finding in findings] == [
        ("hang.group_order", (0, 1), (2, 3))
    ]
    assert [place.line for place in findings[0].where] == [11, 12]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_two_groups_enqueued_crosswise_from_two_threads(tmp_path: Path, backend: str) -> None:
    """Every rank made both calls, so nobody is missing: a device runs them in the order in which they were enqueued."""
    first, second = Op(group="1", line=11, wait=False), Op(group="2", line=12, wait=False)
    programs = {rank: [C, first, second] if rank != 2 else [C, second, first] for rank in range(3)}
    played = Job(programs, {"1": [0, 1, 2], "2": [0, 1, 2]}, backend=backend, frozen=(0, 1, 2))
    result = diagnose(tmp_path, played)
    assert result == ([("group_order", (2,))] if backend == "nccl" else [("network", ())])


def test_a_group_of_gloo_in_which_all_that_were_seen_wait_lacks_a_further_member(tmp_path: Path) -> None:
    op, other = Op(group="1", line=11), Op(group="2", line=12)
    groups = {"1": [0, 1, 2], "2": [0, 1, 2]}
    played = Job({0: [op, op, other], 1: [op, op, op], 2: [op, op, other]}, groups, backend="gloo")
    ((cause, ranks),) = diagnose(tmp_path, played)
    assert cause in {"group_order", "conditional_collective", "uneven_iterations"} and 1 in ranks


def test_the_minority_is_blamed_in_a_circle_of_unequal_sides(tmp_path: Path) -> None:
    first, second = Op(group="1", line=11), Op(group="2", line=11)
    groups = {"1": [0, 1, 2, 3], "2": [0, 1, 2, 3]}
    played = Job({rank: [first, second] if rank != 3 else [second, first] for rank in range(4)}, groups)
    assert diagnose(tmp_path, played) == [("group_order", (3,))]


def test_send_and_receive_circles(tmp_path: Path) -> None:
    ring = {
        rank: [A, Op("recv", 8, 70, peer=(rank - 1) % 4), Op("send", 8, 71, peer=(rank + 1) % 4)] for rank in range(4)
    }
    assert diagnose(tmp_path / "a", Job(ring)) == [("p2p_cycle", (0, 1, 2, 3))]
    pair = {
        0: [A, Op("send", 8, 70, peer=1), Op("recv", 8, 71, peer=1)],
        1: [A, Op("send", 8, 70, peer=0), Op("recv", 8, 71, peer=0)],
    }
    assert diagnose(tmp_path / "b", Job(pair)) == [("p2p_cycle", (0, 1))]
    healthy = {0: [A, Op("send", 8, 70, peer=1), C], 1: [A, Op("recv", 8, 71, peer=0), C]}
    assert diagnose(tmp_path / "c", Job(healthy)) == []


def test_a_receive_that_nobody_sends(tmp_path: Path) -> None:
    played = job(4, [A, C], {0: [A, Op("recv", 8, 70, peer=1), C]})
    assert diagnose(tmp_path, played) == [("p2p_cycle", (0, 1))]


def test_all_agree_and_none_completes(tmp_path: Path) -> None:
    write(tmp_path, Job(same(4, STEP * 3), nobody_completes=5, timed=True))
    findings = [finding for finding in detect(evidence(tmp_path)) if finding.status == "confirmed"]
    assert [(finding.cause, finding.ranks) for finding in findings] == [("hang.network", ())]
    assert "agree" in findings[0].summary


@pytest.mark.parametrize(("waited_s", "cause"), [(3.0, None), (25.0, "hang.network")])
def test_dumps_that_were_asked_of_a_job_that_goes_on(tmp_path: Path, waited_s: float, cause: str | None) -> None:
    write(tmp_path, Job(same(4, STEP * 3), nobody_completes=5))
    file = min(tmp_path.glob("tr_*"))
    youngest = FlightFile(file, file.name, 0, Limits()).load()[0].last_s()
    for path in tmp_path.glob("tr_*"):
        os.utime(path, (youngest + waited_s, youngest + waited_s))
    causes = [finding.cause for finding in detect(evidence(tmp_path)) if finding.status == "confirmed"]
    assert causes == ([cause] if cause else [])


def test_a_device_that_does_not_complete(tmp_path: Path) -> None:
    program = [Op(size=size, line=size, wait=False) for size in range(1, 9)]
    assert diagnose(tmp_path, Job(same(4, program), frozen=(2,))) == [("device_stall", (2,))]


def test_a_rank_without_a_dump_that_all_wait_for(tmp_path: Path) -> None:
    write(tmp_path, job(4, [*STEP, A], {2: STEP}), without=(2,))
    by_cause = {finding.cause: finding for finding in detect(evidence(tmp_path, world_size=4))}
    assert not [item for item in by_cause.values() if item.status == "confirmed"]
    for cause in ("hang.rank_killed", "hang.host_stall"):
        assert by_cause[cause].status == "undecided" and "wait for rank 2" in by_cause[cause].summary
    aborted = RankError(2, "log", 3, "", "", signal="SIGABRT", exit_code=-6)
    assert confirmed(evidence(tmp_path, world_size=4, errors=[aborted])) == [("rank_killed", (2,))]


def test_a_lost_dump_does_not_hide_the_mismatch_nor_take_the_blame(tmp_path: Path) -> None:
    played = job(4, [*STEP, A], {3: [*STEP, Op(size=99)]})
    assert diagnose(tmp_path, played, without=(2,)) == [("signature_mismatch", (3,))]


def stalled(folder: Path, **more: object) -> list[tuple[str, tuple[int, ...]]]:
    write(folder, job(4, [*STEP, A], {2: STEP}))
    return confirmed(evidence(folder, world_size=4, **more))


def test_a_rank_outside_any_collective_is_named_by_what_else_is_known(tmp_path: Path) -> None:
    assert stalled(tmp_path / "a") == [("host_stall", (2,))]
    peers = [RankError(rank, "err", 0, "RuntimeError", "Connection closed by peer [127.0.0.1]:1") for rank in (0, 1, 3)]
    raised = RankError(2, "err", 0, "ValueError", "bad batch", (Frame("/job/train.py", 44, "load"),))
    assert stalled(tmp_path / "b", errors=[*peers, raised]) == [("rank_raised", (2,))]
    killed = RankError(2, "log", 3, "", "", signal="SIGKILL", exit_code=-9)
    assert stalled(tmp_path / "c", errors=[*peers, killed]) == [("rank_killed", (2,))]
    oom = RankError(2, "err", 0, "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert stalled(tmp_path / "d", errors=[*peers, oom]) == [("rank_oom", (2,))]
    done = RankError(2, "log", 0, "", "", exit_code=0)
    assert stalled(tmp_path / "e", errors=[*peers, done]) == [("rank_exited", (2,))]


def test_a_host_stall_says_what_the_stack_shows(tmp_path: Path) -> None:
    frames = (Frame("/usr/lib/python3.11/queue.py", 171, "get"), Frame("/job/data.py", 7, "next_batch"))
    write(tmp_path, job(4, [*STEP, A], {2: STEP}))
    findings = detect(
        evidence(tmp_path, stacks=[Stacks(2, "stacks/rank_2.txt", (Thread("MainThread", frames, True),))])
    )
    stall = next(finding for finding in findings if finding.cause == "hang.host_stall")
    assert stall.ranks == (2,) and stall.confidence > 0.9
    assert (stall.where[0].file, stall.where[0].line) == ("/job/data.py", 7)


def test_errors_that_speak_of_a_lost_peer_blame_nobody(tmp_path: Path) -> None:
    errors = [RankError(rank, "err", 0, "RuntimeError", "Connection closed by peer") for rank in range(4)]
    write(tmp_path, job(4, [*STEP, A], {3: [*STEP, Op(size=99)]}))
    assert confirmed(evidence(tmp_path, errors=errors)) == [("signature_mismatch", (3,))]


def test_a_gloo_abort_without_dumps_is_a_mismatch_and_no_network_fault(tmp_path: Path) -> None:
    facts = [
        LogFact("gloo_mismatch", 1, "log", 7, "op.preamble.length <= op.nbytes. 4096 vs 32"),
        LogFact("gloo_closed", 0, "log", 9, "Connection reset by peer"),
    ]
    assert confirmed(evidence(tmp_path, facts=facts, world_size=2)) == [("signature_mismatch", ())]


def test_ddp_says_itself_that_gradients_were_missing(tmp_path: Path) -> None:
    facts = [LogFact("ddp_unused", 1, "log", 7, "Expected to have finished reduction in the prior iteration")]
    result = confirmed(evidence(tmp_path, facts=facts, world_size=2))
    assert ("unused_parameters", (1,)) in result


def test_start_up_that_never_completed(tmp_path: Path) -> None:
    facts = [LogFact("rendezvous_timeout", 0, "log", 1, "RendezvousTimeoutError")]
    assert confirmed(evidence(tmp_path, facts=facts, world_size=2)) == [("rendezvous", ())]


def test_torchrun_that_looks_for_nodes_has_started_its_ranks(tmp_path: Path) -> None:
    text = {"type": "RendezvousClosedError", "frames": (Frame("torch/elastic.py", 9, "num_nodes_waiting"),)}
    facts = [LogFact("launcher_error", None, "log", 1, "RendezvousClosedError", text)]
    assert confirmed(evidence(tmp_path, facts=facts, world_size=2)) == []


def test_a_late_rank_is_a_straggler_when_everything_completed(tmp_path: Path) -> None:
    slow = Op(line=10, takes_s=0.5)
    assert diagnose(tmp_path, job(4, STEP * 6, {1: [slow, B] * 6})) == [("straggler", (1,))]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("seed", range(10))
def test_completed_runs_raise_no_alarm(tmp_path: Path, backend: str, seed: int) -> None:
    """Sub-groups that only some ranks use, different ring sizes, uneven amounts in all_to_all."""
    chance = random.Random(seed)
    world = chance.choice([2, 4, 8])
    groups = {"1": list(range(0, world, 2)), "2": list(range(1, world, 2)), "3": list(range(world // 2))}
    plan = [chance.choice(["0", "1", "2", "3"]) for _ in range(chance.randrange(5, 120))]
    programs: dict[int, list[Op]] = {rank: [] for rank in range(world)}
    for place, group in enumerate(plan):
        name = chance.choice(["all_reduce", "all_gather", "barrier", "broadcast"])
        for rank in groups.get(group, range(world)):
            programs[rank].append(Op(name, 8 + place % 5, 10 + place % 7, group, takes_s=chance.random() / 100))
    played = Job(programs, groups, backend, ring={rank: chance.randrange(1, 200) for rank in range(world)})
    write(tmp_path, played)
    statuses = {finding.status for finding in detect(evidence(tmp_path, world_size=world))}
    assert "confirmed" not in statuses


def test_names_and_order_of_files_do_not_matter(tmp_path: Path) -> None:
    played = job(4, [*STEP * 3, Op(line=12)], {2: [*STEP * 3, Op("broadcast", 8, 11)]})
    names = ["tr_{}", "node-7.example_comm_lib_trace_rank_{}", "x{}.pickle", "zz_9_rank_{}_"]
    reports = []
    for number, name in enumerate(names[:3]):
        folder = tmp_path / str(number)
        write(folder, played, name=name)
        for shuffle in range(4):
            result = evidence(folder, world_size=4)
            random.Random(shuffle).shuffle(result.handles(FlightFile))
            reports.append(
                [
                    (finding.cause, finding.status, finding.ranks, finding.summary, finding.where, finding.measured)
                    for finding in detect(result)
                ]
            )
        shutil.rmtree(folder)
    assert all(report == reports[0] for report in reports)


def test_damaged_files_become_problems_and_no_verdict(tmp_path: Path) -> None:
    write(tmp_path, job(4, STEP * 2, {}))
    whole = (tmp_path / "tr_1").read_bytes()
    (tmp_path / "tr_1").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "tr_2").write_bytes(b"")
    (tmp_path / "tr_3").write_bytes(b'{"entries": [{"process_group": 3}, null], "version": "2.10"}')
    result = evidence(tmp_path, world_size=4)
    assert confirmed(result) == []
    assert {problem.file for problem in result.problems} == {"tr_1", "tr_2", "tr_3"}


def test_an_extra_call_that_fits_its_peers_for_a_while_is_traced_to_its_own_line(tmp_path: Path) -> None:
    loss = Op(size=1, line=44)
    extra = Op(size=1, line=26, function="log_metrics")
    played = job(4, [A, loss] * 4, {0: [A, loss, A, extra, loss, A, loss]})
    write(tmp_path, played)
    findings = [finding for finding in detect(evidence(tmp_path)) if finding.status == "confirmed"]
    assert [(finding.cause, finding.ranks, finding.position) for finding in findings] == [
        ("hang.conditional_collective", (0,), 4)
    ]
    assert findings[0].where[0].line == 26


def test_a_rank_that_ended_in_order_ran_fewer_steps(tmp_path: Path) -> None:
    last = Op(size=3, line=18, function="report")
    write(tmp_path, job(4, STEP * 4, {1: [*STEP * 3, last]}))
    done = RankError(1, "log", 0, "", "", exit_code=0)
    assert ("uneven_iterations", (1,)) in confirmed(evidence(tmp_path, errors=[done]))


def at(line: int, *path: tuple[str, int], size: int = 8) -> Call:
    """A call with its stack, outermost function first."""
    stack = tuple(Frame("/job/train.py", number, function) for function, number in path[::-1])
    described = Described(Wire("all_reduce", (size,), ("float32",)), f"all_reduce [{size}]")
    own = Frame("/job/train.py", line, "call")
    return Call(GroupKey("gloo", "0", "default_pg"), 1, described, True, None, stack=(own, *stack))


def test_gradients_reduced_once_more_within_a_step(tmp_path: Path) -> None:
    path = ("main", 90)
    texts = [replace(at(line, path, size=line), seq=seq, step=1) for seq, line in enumerate((43, 44, 50), 1)]
    uneven = [*texts[:2], replace(texts[0], seq=3), replace(texts[1], seq=4)]
    assert explain(texts, uneven, 3).kind == "more_iterations"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ((("main", 90), ("step", 35), ("evaluate", 7)), "added"),
        ((("main", 88), ("end_of_epoch", 7)), "fewer_iterations"),
        ((("main", 95), ("evaluate", 7)), "added"),
        ((("main", 95), ("log_metrics", 7)), "added"),
    ],
)
def test_a_call_within_the_loop_is_extra_and_one_outside_ends_it(path: tuple[tuple[str, int], ...], kind: str) -> None:
    """Evaluating from within a step, on one rank, is another fault than leaving the loop for the evaluation."""
    loop = [at(11, ("main", 90), ("step", 35)), at(12, ("main", 90), ("step", 37), size=9)]
    calls = [*loop, *loop, *loop]
    for seq, call in enumerate(calls, 1):
        calls[seq - 1] = replace(call, seq=seq)
    texts = [*calls[:4], replace(at(50, *path, size=3), seq=5)]
    assert explain(calls, texts, 5).kind == kind


@pytest.mark.parametrize(
    ("world", "differing", "cause"),
    [
        (4, (1, 3), "collective_mismatch"),  # half against half: two branches
        (2, (1,), "conditional_collective"),  # one against one: a condition on the rank
        (5, (1, 3), "conditional_collective"),
    ],
)
def test_a_call_of_half_the_ranks_is_a_branch(
    tmp_path: Path, world: int, differing: tuple[int, ...], cause: str
) -> None:
    loop = [Op("all_gather", 16, 20), Op(line=10)] * 4
    own = Op("broadcast", 64, 55, function="share")
    played = job(world, [*loop, *loop[:1]], {rank: [*loop, own] for rank in differing})
    culprits = tuple(range(world)) if 2 * len(differing) == world else differing
    assert diagnose(tmp_path, played) == [(cause, culprits)]


def test_other_kinds_are_ruled_out_by_what_meets_where(tmp_path: Path) -> None:
    write(tmp_path, job(4, [*STEP, Op(line=12)], {1: [*STEP, Op("broadcast", 8, 11)]}))
    by_cause = {finding.cause: finding for finding in detect(evidence(tmp_path))}
    item = by_cause["hang.signature_mismatch"]
    assert item.status == "ruled_out"
    assert item.summary == "The ranks issue different operations at position 3 of group default_pg."
    assert item.measured == (
        "position 3 of group default_pg: broadcast [8] float32 (train.py:11) is matched with all_reduce [8] float32 "
        "(train.py:12)"
    )
    assert by_cause["hang.collective_mismatch"].measured == "1 of 4 ranks differ at position 3 of group default_pg"


def test_ddps_own_complaint_is_no_exception_of_the_rank(tmp_path: Path) -> None:
    message = "Expected to have finished reduction in the prior iteration before starting a new one. This error ..."
    error = RankError(1, "error.json", 0, "RuntimeError", message, (Frame("/job/train.py", 7, "step"),))
    fact = LogFact("ddp_unused", 1, "log", 3, message)
    write(tmp_path, job(2, [A, B, A], {1: [A, B]}, backend="gloo"))
    result = confirmed(evidence(tmp_path, errors=[error], facts=[fact], world_size=2))
    assert result == [("unused_parameters", (1,))]


def test_a_scalar_is_called_so() -> None:
    summed = Wire("all_reduce", (1, 6), ("float32",), reduce_op="SUM")
    assert describe("all_reduce", summed, [[], [2, 3]], "float32").text == "all_reduce scalar, [2, 3] float32 SUM"


def test_a_long_message_is_cut_to_its_first_words(tmp_path: Path) -> None:
    message = "bad batch: " + "x" * 130 + ". Try another one.\nsecond line"
    error = RankError(1, "error.json", 0, "ValueError", message, (Frame("/job/train.py", 7, "step"),))
    write(tmp_path, job(2, [A, B, A], {1: [A, B]}, backend="gloo"))
    item = next(
        finding for finding in detect(evidence(tmp_path, errors=[error], world_size=2)) if finding.status == "confirmed"
    )
    assert item.cause == "hang.rank_raised"
    assert item.summary.startswith("Rank 1 raised ValueError: bad batch: " + "x" * 130 + " (train.py:7).")


def test_a_third_side_is_not_said_to_do_what_the_second_does(tmp_path: Path) -> None:
    uneven = {1: [A, Op("broadcast", 8, 11)], 2: [A, C]}
    write(tmp_path, job(5, [A, Op(line=12)], uneven))
    result = next(finding for finding in detect(evidence(tmp_path)) if finding.status == "confirmed")
    assert result.ranks == (1, 2)
    assert result.summary.startswith("Rank 1 calls broadcast") and result.summary.endswith("Rank 2 differs from both.")


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("culprit", [0, 2])
def test_two_operations_in_an_if_and_its_else_are_a_mismatch(tmp_path: Path, backend: str, culprit: int) -> None:
    """Neither call was ever made before, and neither side is known to come to the other's."""
    loop = [Op(size=4, line=8)] * 4
    op, uneven = Op("all_gather", 4, 7), Op("reduce_scatter", 6, 6)
    played = job(3, [*loop, op], {culprit: [*loop, uneven]}, backend=backend)
    write(tmp_path, played)
    (finding,) = [item for item in detect(evidence(tmp_path, world_size=3)) if item.status == "confirmed"]
    assert (finding.cause, finding.ranks) == ("hang.collective_mismatch", (culprit,))
    assert [place.line for place in finding.where] == [6, 7]


def test_an_earlier_call_before_one_that_all_know_is_extra(tmp_path: Path) -> None:
    op = Op("all_gather", 4, 7)
    original = [op, Op(size=4, line=20), op, C]
    played = job(3, original, {2: [op, Op(size=4, line=20), Op("reduce_scatter", 6, 6), op, C]})
    assert diagnose(tmp_path, played) == [("conditional_collective", (2,))]


def test_a_receive_without_a_sender_names_both_sides(tmp_path: Path) -> None:
    played = job(2, [A, C], {0: [A, Op("recv", 8, 70, peer=1), C]})
    write(tmp_path, played)
    (finding,) = [item for item in detect(evidence(tmp_path, world_size=2)) if item.status == "confirmed"]
    assert (finding.cause, finding.ranks, finding.confidence) == ("hang.p2p_cycle", (0, 1), 0.65)
    assert [(place.rank, place.line) for place in finding.where] == [(0, 70), (1, 30)]
    assert "rank 1" in finding.summary and "in a cycle" not in finding.summary
    change = finding.remedies[-1].change
    assert change.startswith("make rank 1 send to rank 0 before barrier") and "batch_isend_irecv" not in change


def test_a_stall_without_a_recorded_call_says_where_to_look(tmp_path: Path) -> None:
    """Dumps of active entries only: what a rank did last is a counter."""
    write(tmp_path, job(3, [*STEP * 3, A], {2: STEP * 3}, stacks=False))
    dumps = job(3, [*STEP * 3, A], {2: STEP * 3}, stacks=False).play()
    import pickle

    dumps[2]["entries"] = []
    (tmp_path / "tr_2").write_bytes(pickle.dumps(dumps[2]))
    result = {finding.cause: finding for finding in detect(evidence(tmp_path, world_size=3))}["hang.host_stall"]
    assert result.ranks == (2,) and "start-up" not in result.remedies[-1].change
    assert "after position 6 of group default_pg" in result.remedies[-1].change


def test_sentences_about_one_rank_are_in_the_singular(tmp_path: Path) -> None:
    write(tmp_path / "a", job(2, [A, Op(size=9)], {1: [A, Op(size=8)]}))
    write(tmp_path / "b", job(2, [*STEP * 3, C], {1: [*STEP * 2, C]}))
    for folder in ("a", "b"):
        for finding in detect(evidence(tmp_path / folder, world_size=2)):
            assert "rank 0 have" not in finding.summary and "rank 0 are" not in finding.summary


def test_a_dataset_without_workers_stalls_in_the_data_loader(tmp_path: Path) -> None:
    """The loader calls it from the main thread, so torch's frames lie below the user's."""
    fetch = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py"
    frames = (Frame("/job/data.py", 7, "__getitem__"), Frame(fetch, 54, "fetch"), Frame("/job/train.py", 9, "main"))
    write(tmp_path, job(4, [*STEP, A], {2: STEP}))
    for kept, words in (
        (frames, "in the data loader"),
        (frames[::2], "a C call from it, which leaves no frame: a lock"),
    ):
        findings = detect(
            evidence(tmp_path, stacks=[Stacks(2, "stacks/rank_2.txt", (Thread("MainThread", kept, True),))])
        )
        stall = next(finding for finding in findings if finding.cause == "hang.host_stall")
        assert words in stall.summary and (stall.where[0].file, stall.where[0].line) == ("/job/data.py", 7)


def blocked(case: Case) -> dict[int, list[Call]]:
    """What every rank recorded until nobody could move; the last call of each did not complete."""
    recorded: dict[int, list[Call]] = {}
    for rank, groups in histories(case).items():
        calls = sorted((item for own in groups.values() for item in own), key=lambda group: group.created_s or 0.0)
        recorded[rank] = [*calls[:-1], replace(calls[-1], done=False)] if calls else []
    return recorded


def explained(case: Case) -> Stall:
    members = {key(number): ranks for number, ranks in enumerate(case.members)}
    files = []
    for rank, calls in blocked(case).items():
        own = {group: ranks for group, ranks in members.items() if rank in ranks}
        files.append(Memory(Dump(rank, f"rank_{rank}", "nccl", calls, members=own), f"rank_{rank}", rank))
    return explain_stall(Evidence(Path(), Limits(), files={"simulation": files}, world_size=case.world))


def shows(case: Case) -> bool:
    """Whether the recorded calls of two ranks of one group differ at any position."""
    recorded: dict[int, dict[tuple[GroupKey, int], Call]] = {
        rank: {(item.key, item.seq): item for item in calls} for rank, calls in blocked(case).items()
    }
    return any(
        differing_parts(call.wire, other[place].wire)
        for own in recorded.values()
        for other in recorded.values()
        for place, call in own.items()
        if place in other
    )


@settings(max_examples=30, derandomize=True)
@given(st.integers(0, 1 << 20))
def test_the_minority_with_the_edit_is_blamed_and_nobody_else(seed: int) -> None:
    case = plant(random.Random(seed))
    if case is None:
        return
    case = replace(case, blocked=True)
    if not shows(case):
        return
    stall = explained(case)
    assert [divergence.culprits for divergence in stall.divergences] == [case.minority]
    assert {rank for result in stall.inferred for rank in result.culprits} <= set(case.minority)
    assert stall.host is None and not stall.circular and not stall.endings and stall.missing is None
    assert late_rank(stall.job) is None


@settings(max_examples=20, derandomize=True)
@given(st.integers(0, 1 << 20))
def test_ranks_that_call_the_same_have_no_divergence(seed: int) -> None:
    case = plant(random.Random(seed))
    if case is not None:
        stall = explained(replace(case, edited=case.common, blocked=False))
        assert not stall.divergences and not diverge(replace(case, edited=case.common, blocked=False))[0]


@pytest.mark.parametrize(
    ("error", "function", "sure"),
    [
        ("ValueError: bad metric", "train", False),
        ("ValueError: bad metric", "download", True),  # Another thread's.
        ("RuntimeError: [gloo/transport/tcp/pair.cc:5] Connection closed by peer [10.0.0.2]:9", "train", True),
    ],
)
def test_an_exception_in_the_thread_that_makes_a_missed_call_leaves_it_out_too(
    tmp_path: Path, error: str, function: str, sure: bool
) -> None:
    write(tmp_path, job(4, [*STEP, *STEP, A], {2: [*STEP, A, C]}))
    kind, _, message = error.partition(": ")
    fields = {"type": kind, "message": message, "frames": (Frame("/job/train.py", 44, function),)}
    facts = [LogFact("side_error", None, "stderr.log", 10, error, fields)]
    (cause,) = (case for case in detect(evidence(tmp_path, world_size=4, facts=facts)) if case.status == "confirmed")
    assert (cause.ranks, cause.confidence >= 0.6) == ((2,), sure)
