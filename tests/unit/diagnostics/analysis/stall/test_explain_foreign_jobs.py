"""Evidence of jobs that dtk did not start: launchers' exit codes, sends that gloo does not record, lost files."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import ENDED_BY_WATCH
from diagnostics.evidence.model import Frame, LogFact, RankError
from tests.unit.diagnostics.hang.dumps import Job, Op, Shown, confirmed, detect, evidence, write

A, B, C = Op(line=10), Op("all_gather", 16, 20), Op("barrier", line=30)
TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
TIMED_OUT = "[unbound_buffer.cc:78] Timed out waiting 25000ms for recv operation to complete"


def same(world: int, program: list[Op]) -> dict[int, list[Op]]:
    return {rank: list(program) for rank in range(world)}


def code(rank: int, number: int = 1) -> RankError:
    return RankError(rank, "torchrun.log", 9, "", f"exit code {number}", exit_code=number)


def ended_by_the_launcher(rank: int) -> RankError:
    return RankError(rank, "torchrun.log", 9, "", "killed by SIGTERM", signal="SIGTERM", exit_code=-15)


def in_call(rank: int, function: str, line: int) -> RankError:
    frames = (Frame(TORCH, 2799, function), Frame("/job/train.py", line, "main"))
    return RankError(rank, f"{rank}/stderr.log", 1, "RuntimeError", TIMED_OUT, frames)


def by_cause(folder: Path, **more: object) -> dict[str, Shown]:
    return {finding.cause.removeprefix("hang."): finding for finding in detect(evidence(folder, **more))}


def test_the_launchers_exit_codes_do_not_turn_the_verdict_of_the_dumps(tmp_path: Path) -> None:
    write(tmp_path, Job({**same(3, [A, B, A]), 1: [A, B]}, backend="gloo"))
    codes = [code(0), ended_by_the_launcher(1), code(2)]
    assert confirmed(evidence(tmp_path, errors=codes)) == confirmed(evidence(tmp_path)) == [("host_stall", (1,))]
    assert "Rank 1 ended with exit code 1" in by_cause(tmp_path, errors=[code(1)])["host_stall"].summary


def test_the_exit_code_of_a_rank_that_the_watch_ended_is_no_cause(tmp_path: Path) -> None:
    write(tmp_path, Job({**same(3, [A, B, A]), 1: [A, B]}, backend="gloo"))
    ended = [code(0, ENDED_BY_WATCH), ended_by_the_launcher(2)]
    assert confirmed(evidence(tmp_path, errors=ended)) == [("host_stall", (1,))]


def test_timeouts_of_the_peers_beside_the_launchers_sigterm(tmp_path: Path) -> None:
    write(tmp_path, Job({**same(3, [A, B, A]), 1: [A, B]}, backend="gloo"))
    errors = [in_call(0, "all_reduce", 10), ended_by_the_launcher(1), in_call(2, "all_reduce", 10)]
    facts = [LogFact("gloo_timeout", rank, f"{rank}/stderr.log", 3, TIMED_OUT) for rank in (0, 2)]
    assert confirmed(evidence(tmp_path, errors=errors, facts=facts)) == [("host_stall", (1,))]


def test_exit_codes_alone_blame_nobody_unless_there_is_one(tmp_path: Path) -> None:
    findings = by_cause(tmp_path, errors=[code(0), ended_by_the_launcher(2)])
    assert findings["rank_raised"].status == "undecided" and "no traceback" in findings["rank_raised"].summary
    assert confirmed(evidence(tmp_path, errors=[code(0)])) == [("rank_raised", (0,))]
    assert confirmed(evidence(tmp_path, errors=[code(0), code(1, 17)])) == [("rank_exited", (1,))]


@pytest.mark.parametrize(("world", "culprits"), [(4, (1,)), (2, (0, 1))])
def test_a_call_that_fits_from_another_line_is_no_divergence(
    tmp_path: Path, world: int, culprits: tuple[int, ...]
) -> None:
    ops = [Op(size=4, line=16), Op(line=20)]
    uneven = {0: [Op(size=4, line=14), Op(line=20)], 1: [Op(size=4, line=16), Op("broadcast", line=18)]}
    write(tmp_path, Job({**same(world, ops), **uneven}, backend="gloo"))
    collective_mismatch = by_cause(tmp_path)["collective_mismatch"]
    assert (collective_mismatch.status, collective_mismatch.ranks, collective_mismatch.position) == (
        "confirmed",
        culprits,
        2,
    )
    assert [place.line for place in collective_mismatch.where] == [18, 20]


@pytest.mark.parametrize("extra_after", [1, 3])
@pytest.mark.parametrize("other_line", [False, True])
def test_an_extra_call_of_the_same_shape_is_found_by_its_line(
    tmp_path: Path, extra_after: int, other_line: bool
) -> None:
    """Also beside a harmless call from another line, which shifts nothing."""
    first = Op(line=12) if other_line else A
    loop = [A] * 4
    uneven = [first, *loop[:extra_after], Op(line=16, function="log_metrics"), *loop[extra_after:], C]
    write(tmp_path, Job({**same(4, [A, *loop, C]), 0: uneven}, backend="gloo"))
    conditional_collective = by_cause(tmp_path)["conditional_collective"]
    assert (conditional_collective.status, conditional_collective.ranks, conditional_collective.position) == (
        "confirmed",
        (0,),
        extra_after + 2,
    )
    assert conditional_collective.where[0].line == 16


def test_completed_calls_of_gloo_do_not_exclude_a_circle_of_receives(tmp_path: Path) -> None:
    write(tmp_path / "gloo", Job(same(3, [A] * 5), backend="gloo"))
    p2p_cycle = by_cause(tmp_path / "gloo")["p2p_cycle"]
    assert p2p_cycle.status == "undecided" and "send and recv are not recorded on gloo" in p2p_cycle.summary
    write(tmp_path / "nccl", Job(same(3, [A] * 5)))
    assert by_cause(tmp_path / "nccl")["p2p_cycle"].status == "ruled_out"


def test_tracebacks_in_recv_make_a_circle_only_if_nobody_is_left_to_send(tmp_path: Path) -> None:
    write(tmp_path / "ring", Job(same(3, [A] * 5), backend="gloo"))
    facts = [LogFact("gloo_timeout", 0, "0/stderr.log", 3, TIMED_OUT)]
    ring = [in_call(rank, "recv", 50) for rank in range(3)]
    assert confirmed(evidence(tmp_path / "ring", errors=ring, facts=facts)) == [("p2p_cycle", (0, 1, 2))]
    assert confirmed(evidence(tmp_path / "ring", errors=ring[:2], facts=facts)) == []
    raised = RankError(2, "2/stderr.log", 1, "ValueError", "bad batch", (Frame("/job/train.py", 7, "load"),))
    assert confirmed(evidence(tmp_path / "ring", errors=[*ring[:2], raised], facts=facts)) == [("rank_raised", (2,))]
    write(tmp_path / "one", Job({**same(3, [A, A]), 1: [A]}, backend="gloo"))
    errors = [in_call(0, "all_reduce", 10), in_call(1, "recv", 50), in_call(2, "all_reduce", 10)]
    assert confirmed(evidence(tmp_path / "one", errors=errors, facts=facts)) == [("p2p_cycle", (1,))]


def test_a_stage_with_one_micro_batch_more_waits_for_a_send_that_nobody_makes(tmp_path: Path) -> None:
    """All calls failed, which gloo marks as it marks completed ones: only the tracebacks show who waits."""
    write(tmp_path, Job(same(3, [A, A]), backend="gloo"))
    facts = [LogFact("gloo_timeout", 0, "0/stderr.log", 3, TIMED_OUT)]
    errors = [in_call(0, "all_reduce", 10), in_call(1, "recv", 50), in_call(2, "all_reduce", 10)]
    assert confirmed(evidence(tmp_path, errors=errors, facts=facts)) == [("p2p_cycle", (1,))]
    apart = [in_call(0, "all_reduce", 10), errors[1], in_call(2, "broadcast", 30)]
    assert confirmed(evidence(tmp_path, errors=apart, facts=facts)) == []


def test_a_damaged_dump_is_no_rank_that_was_killed(tmp_path: Path) -> None:
    write(tmp_path, Job({**same(4, [A, B, A]), 1: [A, B, Op("broadcast", 8, 11)]}, backend="gloo"))
    whole = (tmp_path / "tr_1").read_bytes()
    (tmp_path / "tr_1").write_bytes(whole[: len(whole) // 2])
    findings = by_cause(tmp_path)
    assert not [finding for finding in findings.values() if finding.status == "confirmed"]
    assert findings["rank_killed"].status == "undecided" and "damaged: tr_1" in findings["rank_killed"].summary


def test_arguments_that_are_printed_alike_are_named_by_what_differs(tmp_path: Path) -> None:
    scatter = Op("scatter", line=12)
    dumps = Job({**same(4, [A, scatter]), 1: [A, Op("scatter", line=12, size=9)]}).play()
    dumps[1]["entries"][1]["input_sizes"] = dumps[0]["entries"][1]["input_sizes"]  # What is printed.
    for rank, dump in dumps.items():
        (tmp_path / f"tr_{rank}").write_bytes(pickle.dumps(dump))
    signature_mismatch = by_cause(tmp_path)["signature_mismatch"]
    assert (signature_mismatch.status, signature_mismatch.ranks) == ("confirmed", (1,))
    assert "What differs is the number of elements." in signature_mismatch.summary


def test_a_rank_that_is_late_stuck_or_gone_is_called_so(tmp_path: Path) -> None:
    write(tmp_path, Job({**same(4, [A, B, A]), 2: [A, B]}, backend="gloo"))
    host_stall = by_cause(tmp_path)["host_stall"]
    assert (host_stall.ranks, host_stall.confidence) == ((2,), 0.6)
    assert "late, stuck or gone; the dumps do not show which" in host_stall.summary


def test_without_stacks_the_remedy_names_both_calls(tmp_path: Path) -> None:
    write(tmp_path, Job({**same(4, [A, A]), 2: [A, C]}, backend="gloo", stacks=False), form="json")
    change = by_cause(tmp_path)["collective_mismatch"].remedies[0].change
    both = "barrier (#2) and all_reduce [8] float32 (#2) occupy the same position"
    assert change.endswith(f"{both}, so they must be the same collective")


@pytest.mark.parametrize("skips", [1, 2])
def test_a_group_of_two_of_which_only_one_comes(tmp_path: Path, skips: int) -> None:
    """Gloo does not say who is in group 1; that ranks 0 and 3 number group 2 as their first says who is not."""
    programs = {rank: [A, Op(group="1", line=53), C] for rank in (1, 2)}
    programs |= {rank: [A, Op(group="2", line=54), C] for rank in (0, 3)}
    programs[skips] = [A, Op("barrier", line=55)]
    programs = {rank: [*calls[:-1], Op("barrier", line=55)] for rank, calls in programs.items()}
    write(tmp_path, Job(programs, {"1": [1, 2], "2": [0, 3]}, backend="gloo"))
    conditional_collective = by_cause(tmp_path)["conditional_collective"]
    assert (conditional_collective.status, conditional_collective.ranks) == ("confirmed", (skips,))
    assert conditional_collective.group is not None and conditional_collective.group.ranks == (1, 2)


def test_an_exception_without_a_rank_counts_if_it_is_the_only_one(tmp_path: Path) -> None:
    error = RankError(None, "out.log", 4, "ValueError", "bad batch", (Frame("/job/train.py", 7, "load"),))
    lost = RankError(None, "out.log", 9, "RuntimeError", "Connection closed by peer [::1]:1")
    assert confirmed(evidence(tmp_path, errors=[error], world_size=1)) == [("rank_raised", (0,))]
    assert confirmed(evidence(tmp_path, errors=[error, lost], world_size=4)) == [("rank_raised", ())]
    assert confirmed(evidence(tmp_path, errors=[error, error], world_size=4)) == []
    write(tmp_path, Job({**same(3, [A, B, A]), 1: [A, B]}, backend="gloo"))
    assert confirmed(evidence(tmp_path, errors=[error])) == [("rank_raised", (1,))]


def test_nobody_is_late_for_the_call_of_a_rank_that_raised(tmp_path: Path) -> None:
    """It raised with an asynchronous call under way, before the other came to it."""
    write(tmp_path, Job({0: [A, B], 1: [A, B, A]}, backend="gloo"))
    error = RankError(1, "error.json", 0, "ValueError", "bad batch", (Frame("/job/train.py", 7, "main"),), exit_code=1)
    assert confirmed(evidence(tmp_path)) == [("host_stall", (0,))]
    assert confirmed(evidence(tmp_path, errors=[error])) == [("rank_raised", (1,))]


def listed(ranks: list[int], pids: list[int]) -> LogFact:
    return LogFact("torchrun_list", None, "torchrun.log", 25, "torchrun lists", {"ranks": ranks, "pids": pids})


def stopped(pid: int, kind: str = "torchrun_signal") -> LogFact:
    return LogFact(kind, None, "torchrun.log", 1, "closing signal", {"pid": pid})


def test_a_rank_that_torchrun_neither_saw_fail_nor_had_to_stop_had_ended(tmp_path: Path) -> None:
    lost = RankError(0, "0/stderr.log", 1, "RuntimeError", "Connection reset by peer", (Frame("/job/a.py", 3, "f"),))
    errors = [lost, code(0), ended_by_the_launcher(2)]
    facts = [stopped(102), stopped(100, "torchrun_failed"), listed([0, 2], [100, 102])]
    (finding,) = [
        item for item in by_cause(tmp_path, errors=errors, facts=facts).values() if item.status == "confirmed"
    ]
    assert (finding.cause, finding.ranks, finding.victims) == ("hang.rank_exited", (1,), (0, 2))
    assert finding.evidence[0].file == "torchrun.log" and finding.measured == "1 of 3 ranks"
    # The last one is only known to have been there by its folder of logs.
    more = confirmed(evidence(tmp_path, errors=errors, facts=facts, launched=frozenset(range(4))))
    assert more == [("rank_exited", ())], "two left and two call one more: either may be wrong"
    # Older versions leave out what they stopped.
    assert not confirmed(evidence(tmp_path, errors=errors, facts=[*facts, stopped(103)]))
    raised = RankError(2, "2/stderr.log", 1, "ValueError", "bad batch", (Frame("/job/a.py", 7, "load"),))
    assert confirmed(evidence(tmp_path, errors=[*errors, raised], facts=facts)) == [("rank_raised", (2,))]
    assert not confirmed(evidence(tmp_path, errors=[code(0), ended_by_the_launcher(2)], facts=facts))


def test_who_is_in_no_list_of_torchrun_ended_where_all_in_it_lost_a_peer_of_this_node(tmp_path: Path) -> None:
    def explained_failures(
        ranks: list[int], peer: str = "[127.0.0.1]:45728", stopped_rank: int = -1, **more: Any
    ) -> Any:
        errors = [
            ended_by_the_launcher(rank)
            if rank == stopped_rank
            else RankError(
                rank, "out.log", 1, "RuntimeError", f"[gloo/transport/tcp/pair.cc:5] Connection closed by peer {peer}"
            )
            for rank in ranks
        ]
        closed = LogFact("gloo_closed", ranks[0], "out.log", 2, "Connection closed by peer", {"peer": peer})
        failed = [stopped(100 + rank, "torchrun_failed") for rank in ranks]
        facts = [closed, *failed, listed(ranks, [100 + rank for rank in ranks])]
        return confirmed(evidence(tmp_path, errors=errors, facts=facts, **more))

    assert explained_failures([0]) == [("rank_exited", ())], "its peer is in no list"
    assert explained_failures([0, 1, 2], world_size=4) == [("rank_exited", (3,))]
    assert explained_failures([0], peer="[10.0.0.7]:45728") == [], "a rank of another node is in the list of that one"
    assert explained_failures([0, 1], stopped_rank=1) == [], "it may have closed its connections before it was stopped"


def test_receives_that_time_out_in_logs_alone_are_a_suspicion(tmp_path: Path) -> None:
    """Nothing says how many ranks there are; with that the circle is sure."""
    facts = [LogFact("gloo_timeout", rank, f"{rank}/stderr.log", 3, TIMED_OUT) for rank in range(3)]
    ring = [in_call(rank, "recv", 50) for rank in range(3)]
    p2p_cycle = by_cause(tmp_path, errors=ring, facts=facts)["p2p_cycle"]
    assert (p2p_cycle.status, p2p_cycle.ranks, p2p_cycle.confidence) == ("confirmed", (0, 1, 2), 0.45)
    assert "nothing says whether the job has more ranks" in p2p_cycle.summary
    assert by_cause(tmp_path, errors=ring, facts=facts, world_size=3)["p2p_cycle"].confidence == 0.9
    assert by_cause(tmp_path, errors=ring, facts=facts, world_size=4)["p2p_cycle"].status != "confirmed"


def test_no_sentence_speaks_of_zero_ranks(tmp_path: Path) -> None:
    killed = RankError(None, "out.log", 4, "", "killed", signal="SIGKILL")
    for errors in ([], [code(0)], [killed], [RankError(None, "out.log", 4, "ValueError", "x")]):
        for finding in detect(evidence(tmp_path, errors=errors)):
            assert "of 0 ranks" not in finding.summary + finding.measured


@pytest.mark.parametrize("lines", [(31, 32), (32, 31)])
def test_a_lost_rank_of_a_chain_of_groups_is_no_bystander(tmp_path: Path, lines: tuple[int, int]) -> None:
    """Ranks 0 and 1 share a group, as do 1 and 2; rank 2 is gone without a dump, and 1 waits for it first."""
    first, second = Op(group="1", line=lines[0]), Op(group="2", line=32 + 31 - lines[0])
    groups = {"1": [0, 1], "2": [1, 2]}
    programs = {0: [first, C], 1: [second, first, C], 2: [], 3: [C]}
    if lines == (32, 31):
        write(tmp_path, Job(programs, groups, backend="gloo"), without=(2,))
        assert confirmed(evidence(tmp_path, world_size=4)) == []
    programs = {0: [first, second], 1: [], 2: [replace(second, group="2")]}
    write(tmp_path / "middle", Job(programs, groups, backend="gloo"), without=(1,))
    assert confirmed(evidence(tmp_path / "middle", world_size=3)) == []
