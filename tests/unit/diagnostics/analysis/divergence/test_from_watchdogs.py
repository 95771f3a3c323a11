"""NCCL watchdog lines of several ranks, without any dump: what they prove, and what they only seem to prove."""
# ruff: noqa: E501  # lines as they are printed

from collections.abc import Sequence
from pathlib import Path

import pytest

from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.histories.watchdog_lines import read_all
from diagnostics.analysis.stall.explain import explain
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.logs import nccl
from tests.unit.diagnostics.hang.dumps import Shown, detect

STATUS = {
    "2.4": "[PG 0 (default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {seq}, "
    "last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.",
    "2.6": "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at "
    "work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.",
    "2.13": "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG "
    "status: last enqueued work: {enqueued}, last completed work: {completed}",
}
SIGNAL = (
    "[rank{rank}]:[E1121 10:00:02.1 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a "
    "dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued "
    "NCCL work: {enqueued}, last completed NCCL work: {completed}.This is most likely caused by incorrect usages of "
    "collectives, e.g., wrong sizes used across ranks"
)
STACK = """\
[rank{rank}]:[E1121 10:00:01.4 ProcessGroupNCCL.cpp:699] Stack trace of the failed collective: \

#0 all_reduce from /venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3002
#1 wrapper from /venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py:81
#2 log_metrics from /job/train.py:{line}
#3 main from /job/train.py:90
"""
GROUP = "[PG ID {id} PG GUID {guid} Rank {place}] "


def timeout(
    rank: int,
    seq: int = 42,
    op: str = "ALLREDUCE",
    numel: object = 1024,
    place: int | None = None,
    at: str = "10:00:00",
) -> str:
    return (
        f"[rank{rank}]:[E1121 {at}.123456789 ProcessGroupNCCL.cpp:688] [Rank {rank if place is None else place}] Watchdog "
        f"caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, "
        "Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    )


def status(rank: int, seq: int = 42, version: str = "2.6", ahead: int = 1) -> str:
    text = STATUS[version].format(rank=rank, seq=seq, enqueued=seq + ahead, completed=seq - 1)
    return f"[rank{rank}]:[E1121 10:00:01.2 ProcessGroupNCCL.cpp:1785] {text}\n"


def hung(rank: int, seq: int = 42, op: str = "ALLREDUCE", numel: object = 1024, version: str = "2.6") -> str:
    return "step 41 loss 2.0\n" + timeout(rank, seq, op, numel) + status(rank, seq, version)


def in_group(
    rank: int,
    guid: str,
    place: int,
    seq: int = 42,
    numel: int = 1024,
    number: int = 1,
    op: str = "ALLREDUCE",
    ahead: int = 0,
    at: str = "10:00:00",
) -> str:
    text = GROUP.format(id=number, guid=guid, place=place)
    return timeout(rank, seq, op, numel, place, at) + (
        f"[rank{rank}]:[E1121 10:00:01.2 ProcessGroupNCCL.cpp:1785] {text}Exception (either an error or timeout) detected "
        f"by watchdog at work: {seq}, last enqueued NCCL work: {seq + ahead}, last completed NCCL work: {seq - 1}.\n"
    )


def write(folder: Path, logs: dict[int, str]) -> None:
    for rank, text in logs.items():
        (folder / f"rank_{rank}.log").write_text(text, encoding="utf-8")


def findings_of(folder: Path, logs: dict[int, str]) -> list[Shown]:
    write(folder, logs)
    return [finding for finding in detect(gather(folder, Limits())) if finding.status == "confirmed"]


def report_text(folder: Path) -> str:
    return next(
        finding.summary for finding in detect(gather(folder, Limits())) if finding.cause == "hang.collective_mismatch"
    )


@pytest.mark.parametrize("version", STATUS)
@pytest.mark.parametrize(
    ("op", "numel", "cause"),
    [
        ("ALLREDUCE", 99, "signature_mismatch"),
        ("ALLREDUCE", 1, "collective_mismatch"),  # A metric or a barrier, where the others reduce gradients.
        ("BROADCAST", 1024, "collective_mismatch"),
    ],
)
def test_calls_that_do_not_fit_at_one_position(tmp_path: Path, version: str, op: str, numel: int, cause: str) -> None:
    logs = {rank: hung(rank, version=version) for rank in range(4)}
    logs[1] = hung(1, op=op, numel=numel, version=version)
    (finding,) = findings_of(tmp_path, logs)
    assert (finding.cause, finding.ranks, finding.victims, finding.position) == (f"hang.{cause}", (1,), (0, 2, 3), 42)
    assert finding.group is not None and finding.group.desc == "default_pg"
    assert 0.5 <= finding.confidence < 0.8
    assert [(item.file, item.line) for item in finding.evidence] == [("rank_1.log", 2), ("rank_0.log", 2)]
    assert finding.summary.startswith("Rank 1 calls ") and "ranks 0, 2 and 3 " in finding.summary
    assert "all_reduce of 1,024 elements, at position 42 of group default_pg" in finding.summary
    assert "(A barrier is an all_reduce of 1 element.)" in finding.summary or numel != 1


def test_a_tie_is_said_to_be_one(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, {rank: hung(rank, numel=1024 if rank < 2 else 8) for rank in range(4)})
    assert finding.ranks == (0, 1, 2, 3) and "It is a tie (2 against 2)" in finding.summary


def test_a_tie_of_a_pair_is_decided_by_the_other_pairs(tmp_path: Path) -> None:
    """Rank 1 left a call out, so it enqueued one fewer than every other rank of the tp groups."""
    logs = {rank: in_group(rank, f"{1 + rank // 2}(mesh_tp)", rank % 2, seq=43, ahead=6) for rank in (2, 3, 4, 5)}
    logs |= {rank: in_group(rank, "1(mesh_tp)", rank, numel=1024 + rank, ahead=7 - rank) for rank in (0, 1)}
    (finding,) = findings_of(tmp_path, logs)
    assert (finding.cause, finding.ranks, finding.victims, finding.position) == (
        "hang.collective_mismatch",
        (1,),
        (0,),
        42,
    )
    assert finding.group is not None and finding.group.name == "1"


def test_a_tie_of_a_pair_in_which_all_enqueued_alike_stays_one(tmp_path: Path) -> None:
    logs = {rank: in_group(rank, f"{1 + rank // 2}(mesh_tp)", rank % 2, seq=43, ahead=6) for rank in (2, 3, 4, 5)}
    logs |= {rank: in_group(rank, "1(mesh_tp)", rank, numel=1024 + rank, ahead=7) for rank in (0, 1)}
    (finding,) = findings_of(tmp_path, logs)
    assert (finding.cause, finding.ranks) == (
        "hang.signature_mismatch",
        (0, 1),
    ) and "a tie (1 against 1)" in finding.summary


def test_a_tie_of_a_pair_is_decided_by_pairs_at_the_same_position(tmp_path: Path) -> None:
    logs = {rank: in_group(rank, f"{1 + rank // 2}(mesh_tp)", rank % 2) for rank in (1, 2, 3)}
    logs[0] = in_group(0, "1(mesh_tp)", 0, op="BROADCAST")
    (finding,) = findings_of(tmp_path, logs)
    assert (finding.cause, finding.ranks, finding.victims) == ("hang.collective_mismatch", (0,), (1,))


def test_two_lines_of_the_program_are_two_calls(tmp_path: Path) -> None:
    """Sizes that differ are arguments only where the ranks are at one line and enqueue equally many calls."""
    logs = {rank: hung(rank, numel=8 if rank == 2 else 1024) + STACK.format(rank=rank, line=12) for rank in range(3)}
    (finding,) = findings_of(tmp_path, logs)
    assert (finding.cause, finding.ranks) == ("hang.signature_mismatch", (2,))
    (finding,) = findings_of(tmp_path, {**logs, 2: hung(2, numel=8) + STACK.format(rank=2, line=20)})
    assert (finding.cause, finding.ranks) == ("hang.collective_mismatch", (2,))
    (finding,) = findings_of(tmp_path, {**logs, 2: timeout(2, numel=8) + status(2, ahead=0)})
    assert (finding.cause, finding.ranks) == ("hang.collective_mismatch", (2,))


def gathers(ranks: Sequence[int], at: str, members: int = 4) -> dict[int, str]:
    """Ranks that wait in an all_gather of their shards and, since 09:50:00, in an all_reduce of the default group."""
    numel = f"NumelOut={1024 * members}"
    logs = {rank: in_group(rank, "1(mesh_dp)", rank, seq=77, op="_ALLGATHER_BASE", at=at) for rank in ranks}
    return {rank: hung(rank) + logs[rank].replace("NumelOut=1024", numel) for rank in ranks}


def test_a_rank_that_is_in_a_later_call_of_another_group_left_one_out(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, {1: hung(1), **gathers((0, 2, 3), "09:59:58")})
    assert (finding.cause, finding.ranks, finding.victims) == ("hang.conditional_collective", (1,), (0, 2, 3))
    assert finding.group is not None and (finding.group.name, finding.position, finding.confidence) == ("1", 77, 0.72)
    assert "Rank 1 skipped all_gather of 1,024 elements (#77), in which ranks 0, 2 and 3 wait" in finding.summary


@pytest.mark.parametrize(
    "logs",
    [
        {1: hung(1), **gathers((0, 2, 3), "10:00:00")},  # No order of the two calls.
        {1: hung(1), **gathers((0, 2, 3), "10:00:02")},  # The all_reduce came first.
        {1: hung(1), **gathers((0, 2, 3), "09:59:58", members=3)},  # Rank 1 is no member.
        {1: timeout(1, seq=41) + status(1, 41), **gathers((0, 2, 3), "09:59:58")},  # In another call than the others.
        {1: in_group(1, "1(mesh_dp)", 1, seq=77, op="_ALLGATHER_BASE"), **gathers((0, 2, 3), "09:59:58")},
        gathers((0, 2, 3), "09:59:58"),
    ],
)
def test_no_call_is_left_out_if_the_order_or_the_members_are_unknown(tmp_path: Path, logs: dict[int, str]) -> None:
    assert "hang.conditional_collective" not in [finding.cause for finding in findings_of(tmp_path, logs)]


def test_a_line_that_was_not_kept_was_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = gathers((0, 2, 3), "09:59:58")
    console = "".join((waiting[0], waiting[2], waiting[3], hung(1), "step 42 loss 1.0\n"))
    (tmp_path / "console.log").write_text(console)
    evidence = gather(tmp_path, Limits())
    assert [finding.cause for finding in detect(evidence) if finding.status == "confirmed"] == [
        "hang.conditional_collective"
    ]
    with (tmp_path / "console.log").open("a") as log:
        log.write(in_group(1, "1(mesh_dp)", 1, seq=77, op="_ALLGATHER_BASE"))
    monkeypatch.setattr(nccl, "MOST_WATCHDOG_LINES", sum(fact.kind in nccl.WATCHDOGS for fact in evidence.facts))
    cut = gather(tmp_path, Limits())
    assert cut.is_cut and not [finding.cause for finding in detect(cut) if finding.status == "confirmed"]


def test_each_timeout_has_its_own_stack(tmp_path: Path) -> None:
    """The stacks of the first two calls are equal; the third one is of another line."""
    stacks = [STACK.format(rank=0, line=line) for line in (12, 12, 20)]
    calls = [in_group(0, f"{number}(mesh_{number})", 0, seq=70 + number) for number in range(3)]
    write(tmp_path, {0: "".join(call + stack for call, stack in zip(calls, stacks, strict=True))})
    sites = {group.name: group.waits[0].site for group in read_all(gather(tmp_path, Limits()))}
    assert {name: site.line for name, site in sites.items() if site} == {"0": 12, "1": 12, "2": 20}


def test_one_console_of_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "console.log").write_text("".join(hung(rank, numel=8 if rank == 2 else 1024) for rank in range(4)))
    (finding,) = [item for item in detect(gather(tmp_path, Limits())) if item.status == "confirmed"]
    assert (finding.cause, finding.ranks) == ("hang.signature_mismatch", (2,))


def test_lines_without_their_group_count_if_all_ranks_are_there(tmp_path: Path) -> None:
    logs = {rank: timeout(rank, numel=1 if rank == 1 else 1024) for rank in range(4)}
    (finding,) = findings_of(tmp_path, logs)
    assert (finding.ranks, finding.group, finding.confidence) == ((1,), None, 0.72)
    (tmp_path / "rank_0.log").unlink()
    assert not findings_of(tmp_path, {rank: logs[rank] for rank in (1, 2, 3)})


def test_the_stack_of_the_failed_collective_names_the_line(tmp_path: Path) -> None:
    logs = {rank: hung(rank) + STACK.format(rank=rank, line=12) for rank in range(3)}
    logs[2] = hung(2, op="BROADCAST") + STACK.format(rank=2, line=20) + "step 42 loss 1.0\n"
    (finding,) = findings_of(tmp_path, logs)
    assert [(place.rank, place.file, place.line, place.function) for place in finding.where] == [
        (2, "/job/train.py", 20, "log_metrics"),
        (0, "/job/train.py", 12, "log_metrics"),
    ]


def test_stacks_of_two_ranks_that_are_mixed_up_name_no_line(tmp_path: Path) -> None:
    two = [STACK.format(rank=rank, line=line).splitlines() for rank, line in ((0, 12), (1, 20))]
    mixed = "\n".join(line for pair in zip(*two, strict=True) for line in pair)
    (tmp_path / "x.log").write_text(hung(0) + hung(1, numel=8) + mixed + "\n")
    (finding,) = [item for item in detect(gather(tmp_path, Limits())) if item.status == "confirmed"]
    assert finding.where == ()


DESYNC = """\
[rank0]:[E515 18:36:47.343377708 ProcessGroupNCCL.cpp:1937] Rank 0
\t - [0] Timeout at collective: ALLREDUCE, #44
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
{lagging}
\t - Snapshot of ranks' latest states:
{rows}
"""


def test_torchs_report_of_a_desync_tells_who_did_not_come(tmp_path: Path) -> None:
    rows = "\t   #40 finished ranks:\n\t     [3] finished ALLREDUCE\n\t   #44 started ranks:\n"
    rows += "\t     [0, 1] started ALLREDUCE\n\t     [2] started _ALLGATHER_BASE"
    lagging = "\t     [3] finished collective #40, but didn't join collective #41 (count from 1)"
    (tmp_path / "job.log").write_text(timeout(0, seq=39) + DESYNC.format(lagging=lagging, rows=rows))
    (finding,) = [entry for entry in detect(gather(tmp_path, Limits())) if entry.status == "confirmed"]
    assert (finding.cause, finding.ranks, finding.victims, finding.position) == ("hang.host_stall", (3,), (0, 1, 2), 41)
    assert finding.confidence < 0.7 and "never reached a collective (#41" in finding.summary
    assert "[0, 1] started ALLREDUCE" in [str(item.detail) for item in finding.evidence]


def test_torchs_report_of_a_desync_tells_calls_that_do_not_fit(tmp_path: Path) -> None:
    rows = "\t   #44 started ranks:\n\t     [1] started BROADCAST\n\t     [0, 2, 3] started ALLREDUCE"
    lagging = "\t     [0, 1, 2, 3] joined but didn't finish collective #44 (count from 1)"
    (tmp_path / "job.log").write_text(timeout(0) + DESYNC.format(lagging=lagging, rows=rows))
    (finding,) = [item for item in detect(gather(tmp_path, Limits())) if item.status == "confirmed"]
    assert (finding.cause, finding.ranks, finding.position) == ("hang.collective_mismatch", (1,), 44)


def test_torchs_report_of_one_call_of_all_ranks_blames_nobody(tmp_path: Path) -> None:
    rows = "\t   #44 started ranks:\n\t     [0, 1, 2, 3] started ALLREDUCE"
    lagging = "\t     [0, 1, 2, 3] joined but didn't finish collective #44 (count from 1)"
    (tmp_path / "job.log").write_text(timeout(0) + DESYNC.format(lagging=lagging, rows=rows))
    assert not [
        finding for finding in detect(gather(tmp_path, Limits())) if finding.status == "confirmed" and finding.ranks
    ]


@pytest.mark.parametrize("op", ["ALLTOALL", "ALLTOALL_BASE", "GATHER", "SCATTER", "COALESCED", "SEND"])
def test_sizes_that_may_differ_by_rank_prove_nothing(tmp_path: Path, op: str) -> None:
    assert not findings_of(tmp_path, {rank: hung(rank, op=op, numel=rank + 1) for rank in range(4)})


def test_coalesced_and_point_to_point_calls_have_numbers_of_their_own(tmp_path: Path) -> None:
    logs = {rank: hung(rank) for rank in range(3)}
    assert not findings_of(tmp_path, {**logs, 3: hung(3, op="COALESCED", numel=18446744073709551615)})


def test_a_list_and_a_tensor_of_all_gather_are_one_operation(tmp_path: Path) -> None:
    logs = {rank: hung(rank, op="_ALLGATHER_BASE") for rank in range(3)}
    assert not findings_of(tmp_path, {**logs, 3: hung(3, op="ALLGATHER")})


def test_other_groups_are_not_compared(tmp_path: Path) -> None:
    """Tensor-parallel pairs time out in their own calls, each pair at one position of its own."""
    pairs = {0: ("1", 0), 1: ("1", 1), 2: ("2", 0), 3: ("2", 1)}
    logs = {rank: in_group(rank, guid, place, numel=8 if rank < 2 else 16) for rank, (guid, place) in pairs.items()}
    assert not findings_of(tmp_path, logs)


@pytest.mark.parametrize("places", [(0, 1, 0, 1), (0, 1, 2, 2), (0, 2, 1, 3)])
def test_groups_of_one_name_are_told_apart(tmp_path: Path, places: tuple[int, ...]) -> None:
    """`split_group` gives several groups the same GUID."""
    logs = {rank: in_group(rank, "7", place, numel=8 if rank == 1 else 16) for rank, place in enumerate(places)}
    assert not findings_of(tmp_path, logs)
    assert "cannot belong to one process group" in report_text(tmp_path)


def test_a_majority_in_a_sub_group(tmp_path: Path) -> None:
    logs = {rank: in_group(rank, "7", rank - 1, numel=8 if rank == 3 else 16) for rank in (1, 2, 3)}
    (finding,) = findings_of(tmp_path, logs)
    assert finding.ranks == (3,) and finding.group is not None and finding.group.name == "7"


def test_positions_that_differ_prove_no_mismatch(tmp_path: Path) -> None:
    assert not findings_of(tmp_path, {**{rank: hung(rank, seq=43) for rank in range(3)}, 3: hung(3, numel=8)})
    assert "Rank 3 waits in #42 of group default_pg, which rank 2 completed" in report_text(tmp_path)


@pytest.mark.parametrize(("lag", "cause"), [(2, "collective_mismatch"), (41, "conditional_collective")])
def test_most_ranks_went_on_without_one(tmp_path: Path, lag: int, cause: str) -> None:
    logs = {rank: hung(rank, seq=100) for rank in range(4)} | {3: timeout(3, 100 - lag) + status(3, 100 - lag, ahead=3)}
    (finding,) = findings_of(tmp_path, logs)
    assert (finding.cause, finding.ranks, finding.victims, finding.position) == (
        f"hang.{cause}",
        (3,),
        (0, 1, 2),
        100 - lag,
    )
    assert "ranks 0-2 completed #99" in finding.summary and finding.confidence == 0.65


def test_of_two_ranks_neither_is_the_one_behind(tmp_path: Path) -> None:
    assert not findings_of(tmp_path, {0: hung(0, seq=100), 1: hung(1, seq=50)})


def test_one_sided_calls_may_run_ahead(tmp_path: Path) -> None:
    assert not findings_of(tmp_path, {rank: hung(rank, 100 if rank else 98, op="BROADCAST") for rank in range(4)})


def counted(
    rank: int, enqueued: int, completed: int, work: int | None = None, at: str = "10:00:01", pg: str = ""
) -> str:
    """A status line, of a rank whose watchdog found `work` timed out, or that dumped on another rank's signal."""
    group = (pg or "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]").format(rank=rank)
    text = f"last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    text = (
        f"Exception (either an error or timeout) detected by watchdog at work: {work}, {text}"
        if work
        else f"Received a dump signal due to a collective timeout from  rank 0. L{text[1:]}"
    )
    return f"[rank{rank}]:[E1121 {at}.2 ProcessGroupNCCL.cpp:1785] {group} {text}\n"


@pytest.mark.parametrize("culprits", [(7,), (0,), (3, 7)])
@pytest.mark.parametrize(
    ("own", "rest", "said"),
    [
        ((59957, 59956, 59957), (59998, 59997, 59998), "in a collective (#59,957 of group default_pg)"),
        ((59957, 59957, None), (59998, 59998, None), "made no call after #59,957 of group default_pg"),
        ((59957, 59957, None), (59999, 59997, 59998), "made no call after #59,957 of group default_pg"),
    ],
)
def test_counters_alone_tell_who_is_far_behind(
    tmp_path: Path,
    culprits: tuple[int, ...],
    own: tuple[int, int, int | None],
    rest: tuple[int, int, int | None],
    said: str,
) -> None:
    logs = {rank: counted(rank, *(own if rank in culprits else rest)) for rank in range(8)}
    (finding,) = findings_of(tmp_path, logs)
    assert finding.ranks == culprits and finding.victims == tuple(rank for rank in range(8) if rank not in culprits)
    assert said in finding.summary and finding.confidence == 0.65 and finding.missing
    assert finding.cause.startswith("hang.")


def test_counters_alone_tell_which_rank_never_came(tmp_path: Path) -> None:
    logs = {rank: counted(rank, 59998, 59957, 59958) for rank in range(7)} | {7: counted(7, 59957, 59957)}
    (finding,) = findings_of(tmp_path, logs)
    assert (finding.cause, finding.ranks) == (
        "hang.host_stall",
        (7,),
    ) and "never reached a collective (#59,958" in finding.summary


SUB = "[PG ID 1 PG GUID {guid}(dp) Rank {{rank}}]"


@pytest.mark.parametrize(
    "logs",
    [
        {
            rank: counted(rank, *((59998, 59998) if rank else (59995, 59995))) for rank in range(8)
        },  # Few rooted calls may run ahead.
        {rank: counted(rank, *((59998, 59998) if rank % 2 else (59957, 59957))) for rank in range(8)},  # Halves.
        {
            rank: counted(rank, *((59998, 59998) if rank != 7 else (59957, 59957))) for rank in (1, 4, 7)
        },  # Others have no line.
        {rank: counted(rank, 59900 + 9 * rank, 59900 + 9 * rank) for rank in range(8)},  # No two agree.
        {
            rank: counted(rank, *((59998, 59998) if rank < 7 else (59957, 59957)), pg="[Rank {rank}]")
            for rank in range(8)
        },
        {rank: counted(rank, 59998, 59997, 59998) for rank in range(8)},
        {r: counted(r, 59998, 59998, pg=SUB.format(guid=9 + r)) for r in range(7)}
        | {7: counted(7, 59957, 59957, pg=SUB.format(guid=16))},
        {rank: counted(rank, *((998, 998) if rank < 7 else (957, 957))) for rank in range(8)},  # It may count sends.
        # The lines of the last rank are 5 minutes older.
        {r: counted(r, 59998, 59998, at="10:05:01") for r in range(7)} | {7: counted(7, 59957, 59957)},
    ],
)
def test_counters_that_show_nobody_behind(tmp_path: Path, logs: dict[int, str]) -> None:
    assert not findings_of(tmp_path, logs)


@pytest.mark.parametrize(("sites", "culprits"), [("abb", (0,)), ("abab", ()), ("ab", ()), ("bbb", ())])
def test_stacks_of_one_operation_from_different_functions(
    tmp_path: Path, sites: str, culprits: tuple[int, ...]
) -> None:
    logs = {
        rank: STACK.format(rank=rank, line=12).replace("log_metrics", f"of_{site}") + signal(rank, 42, 41)
        for rank, site in enumerate(sites)
    }
    shown = findings_of(tmp_path, logs)
    assert [(item.cause, item.ranks) for item in shown] == (
        [("hang.collective_mismatch", culprits)] if culprits else []
    )


def test_timeouts_of_two_attempts_are_not_one_hang(tmp_path: Path) -> None:
    logs = {rank: hung(rank) for rank in range(3)}
    assert not findings_of(tmp_path, {**logs, 3: timeout(3, numel=8, at="13:00:00") + status(3)})
    (tmp_path / "rank_3.log").unlink()
    assert not findings_of(tmp_path, {**logs, 2: hung(2) + hung(2, seq=80, numel=8), 1: hung(1, numel=8)})


def test_all_agree(tmp_path: Path) -> None:
    assert not findings_of(tmp_path, {rank: hung(rank) for rank in range(4)})
    assert report_text(tmp_path) == (
        "Ranks 0-3 wait in the same call: all_reduce of 1,024 elements, #42 of group default_pg."
    )


def signal(rank: int, enqueued: int = 41, completed: int = 41) -> str:
    return SIGNAL.format(rank=rank, enqueued=enqueued, completed=completed) + "\n"


def test_a_call_that_only_one_rank_makes(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, {0: hung(0, numel=1), **{rank: signal(rank) for rank in (1, 2, 3)}})
    assert (finding.cause, finding.ranks, finding.victims) == ("hang.conditional_collective", (0,), (1, 2, 3))
    assert (
        "Only rank 0 calls all_reduce of 1 element (#42); ranks 1-3 made no call after a collective (#41)"
        in finding.summary
    )
    assert {item.file for item in finding.evidence} == {"rank_0.log", "rank_1.log"}


def test_a_rank_that_never_came(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, {**{rank: hung(rank) for rank in (0, 1, 2)}, 3: signal(3)})
    assert (finding.cause, finding.ranks, finding.victims) == ("hang.host_stall", (3,), (0, 1, 2))
    assert "last call was #41, and it completed" in finding.summary and finding.confidence == 0.65


@pytest.mark.parametrize("uneven", [signal(3, 7, 7), signal(3, 41, 40), signal(3, 42, 41), signal(3, -1, -1)])
def test_counters_that_do_not_meet_the_others_say_nothing(tmp_path: Path, uneven: str) -> None:
    """A status counts sends and receives as well."""
    assert not findings_of(tmp_path, {**{rank: hung(rank) for rank in (0, 1, 2)}, 3: uneven})


def test_a_rank_that_waits_in_another_group_is_not_called_late(tmp_path: Path) -> None:
    logs = {rank: hung(rank) for rank in (0, 1, 2)}
    assert not findings_of(tmp_path, {**logs, 3: in_group(3, "5", 1, seq=9) + signal(3)})


def test_a_rank_that_raised_is_the_cause(tmp_path: Path) -> None:
    raised = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/job/train.py", line 5, in f\n'
    raised += "[rank3]: ValueError: bad batch\n"
    (finding,) = findings_of(tmp_path, {**{rank: hung(rank) for rank in (0, 1, 2)}, 3: raised + signal(3)})
    assert (finding.cause, finding.ranks) == ("hang.rank_raised", (3,))


def old(rank: int, numel: int) -> str:
    """A line of torch 2.1 behind a launcher's prefix that names no rank."""
    return (
        f"(job-a, pid=77) [E ProcessGroupNCCL.cpp:475] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600040 "
        "milliseconds before timing out.\n"
    )


@pytest.mark.parametrize(
    ("sizes", "culprits"),
    [
        ({0: 4096, 1: 4096, 2: 2048, 3: 4096}, (2,)),
        ({0: 4096, 1: 2048}, None),  # They may be the ranks of two groups.
        ({0: 4096, 2: 2048, 3: 4096}, None),  # A rank of the group is missing, so others may be of another one.
    ],
)
def test_ranks_that_only_their_lines_number_are_compared_where_none_is_missing(
    tmp_path: Path, sizes: dict[int, int], culprits: tuple[int, ...] | None
) -> None:
    (tmp_path / "job.log").write_text("".join(old(rank, numel) for rank, numel in sizes.items()))
    confirmed = [finding for finding in detect(gather(tmp_path, Limits())) if finding.status == "confirmed"]
    assert [(item.cause, item.ranks) for item in confirmed] == (
        [("hang.signature_mismatch", culprits)] if culprits else []
    )


BLOCKED = (
    "[rank{0}]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:628] [Rank {1}] Work WorkNCCL(SeqNum=42, OpType=_ALLGATHER_BASE, "
    "NumelIn={2}, NumelOut={3}, Timeout(ms)=600000) timed out in blocking wait (TORCH_NCCL_BLOCKING_WAIT=1).\n"
)


@pytest.mark.parametrize(
    ("place", "times", "causes"),
    [
        (1, 2, ["hang.signature_mismatch"]),
        (1, 4, []),  # Of a group of 4 the other ranks' lines are missing.
        (0, 2, []),  # Each is the first of a group of its own.
    ],
)
def test_a_gather_tells_whether_all_of_its_ranks_are_there(
    tmp_path: Path, place: int, times: int, causes: list[str]
) -> None:
    text = BLOCKED.format(0, 0, 4096, 4096 * times) + BLOCKED.format(1, place, 96, 96 * times)
    (tmp_path / "job.log").write_text(text)
    assert [finding.cause for finding in detect(gather(tmp_path, Limits())) if finding.status == "confirmed"] == causes


def divergence(folder: Path, *logs: str) -> Divergence | None:
    """The divergence that the lines of these ranks show, in the form of those of recorded histories."""
    write(folder, dict(enumerate(logs)))
    return next(iter(explain(gather(folder, Limits())).inferred), None)


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (hung(2, op="ALLGATHER"), "other_operation"),
        (hung(2, numel=2048), "other_arguments"),
        (hung(2, numel=1), "other_operation"),  # A metric is no gradient of another size.
    ],
)
def test_the_lines_give_the_same_kind_of_result_as_histories(tmp_path: Path, last: str, kind: str) -> None:
    result = divergence(tmp_path, hung(0), hung(1), last)
    assert result is not None and (result.kind, result.culprits, result.peers, result.position) == (
        kind,
        (2,),
        (0, 1),
        42,
    )
    assert result.key.desc == "default_pg" and not result.tie and result.confidence == 0.78
    assert result.majority.text == "all_reduce of 1,024 elements" and [line.rank for line in result.lines] == [2, 0]


def test_a_tie_is_less_sure(tmp_path: Path) -> None:
    result = divergence(tmp_path, hung(0), hung(1, op="BROADCAST"))
    assert result is not None and result.tie and result.culprits == (0, 1) and result.confidence == 0.72


def test_positions_that_differ_leave_it_open(tmp_path: Path) -> None:
    logs = (timeout(0, seq=42) + status(0, 42), timeout(1, seq=43) + status(1, 43))
    assert divergence(tmp_path, *logs) is None
    stall = explain(gather(tmp_path, Limits()))
    assert stall.timeouts is not None and sorted(stall.timeouts.waits) == [0, 1]


@pytest.mark.parametrize(
    ("sizes", "cause"),
    [
        (((640, 5120), (768, 6144), (800, 6400)), "hang.signature_mismatch"),  # A gather of 8 ranks.
        (((640, 641), (768, 900), (800, 6400)), None),
        (((0, 0), (768, 0), (800, 0)), None),
    ],
)
def test_the_sizes_of_a_coalesced_block_may_show_its_operation(
    tmp_path: Path, sizes: tuple[tuple[int, int], ...], cause: str | None
) -> None:
    line = (
        "[rank{0}]:[E318 07:39:53.79 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=610, OpType=COALESCED, NumelIn={1}, NumelOut={2}, Timeout(ms)=600000) ran for 600086 "
        "milliseconds before timing out.\n"
        "[rank{0}]:[E318 07:39:53.79 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 9 Rank {0}] Exception (either an error "
        "or timeout) detected by watchdog at work: 610, last enqueued NCCL work: 616, last completed NCCL work: 609.\n"
    )
    (tmp_path / "job.log").write_text("".join(line.format(rank, *pair) for rank, pair in enumerate(sizes)))
    sure = [finding.cause for finding in detect(gather(tmp_path, Limits())) if finding.status == "confirmed"]
    assert sure == ([cause] if cause else [])


def test_the_source_shows_more_than_the_two_calls(tmp_path: Path) -> None:
    """As for recorded calls: only one rank enters the branch of the metric, so it added that call."""
    script = tmp_path / "train.py"
    script.write_text(
        "def main():\n    for batch in data:\n        if rank == 0:\n            metric()\n        step()\n"
    )
    for file, kind in ((script, "added"), (tmp_path / "gone.py", "other_operation")):
        stack = STACK.replace("log_metrics", "main").replace("/job/train.py:{line}", f"{file}:{{line}}")
        steps = [hung(rank) + stack.format(rank=rank, line=5) for rank in (1, 2)]
        result = divergence(tmp_path, hung(0, numel=1) + stack.format(rank=0, line=4), *steps)
        assert result is not None and (result.kind, result.culprits, result.confidence) == (kind, (0,), 0.78)


DUMP_SIGNAL = (
    "[rank{0}]:[E623 12:00:00.1 ProcessGroupNCCL.cpp:1685] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal "
    "due to a collective timeout from  rank 10 and we will try our best to dump the debug info. Last enqueued NCCL work: "
    "166, last completed NCCL work: 166.\n"
)


@pytest.mark.parametrize(("modulo", "joined"), [(8, True), (2, False)])
def test_a_timeout_without_a_group_is_of_the_default_group_if_its_rank_is_global(
    tmp_path: Path, modulo: int, joined: bool
) -> None:
    call = (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=167, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    )
    line = "[rank{0}]:[E623 12:00:00.1 ProcessGroupNCCL.cpp:632] [Rank {1}] " + call
    line += "Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
    named = (
        "[rank7]:[E623 12:00:00.1 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank 7]  failure detected by "
        "watchdog at work sequence id: 167 PG status: last enqueued work: 167, last completed work: 166\n"
    )
    lines = [line.format(rank, rank % modulo) for rank in (4, 5, 6)] + [line.format(7, 7)]
    (tmp_path / "job.log").write_text("".join(lines) + named + DUMP_SIGNAL.format(0) + DUMP_SIGNAL.format(2))
    sure = [finding for finding in detect(gather(tmp_path, Limits())) if finding.status == "confirmed"]
    rows = [(item.cause, item.ranks, item.victims) for item in sure]
    assert (rows == [("hang.host_stall", (0, 2), (4, 5, 6, 7))]) == joined
