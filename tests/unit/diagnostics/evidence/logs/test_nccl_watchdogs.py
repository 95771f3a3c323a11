"""Watchdogs of thousands of ranks in one log: each rank's last state is kept, and only that."""

from pathlib import Path

import pytest

from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.logs import nccl
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.readers import log
from tests.unit.diagnostics.hang.dumps import detect
from tests.work import calls_in

AT = "[E1121 10:00:00.1 ProcessGroupNCCL.cpp:688] "
GROUP = "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
TIMEOUT = (
    "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=8, "
    "NumelOut=8, Timeout(ms)=600000) ran for {ran} milliseconds before timing out."
)
LINES = (
    AT + TIMEOUT,
    AT + GROUP + " failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq}, "
    "last completed work: {done}",
    AT + GROUP + "Received a dump signal. Last enqueued NCCL work: {seq}, last completed NCCL work: {done}.",
    AT + "[Rank {rank}] To avoid data inconsistency, we are taking the entire process down.",
    AT + GROUP + "Process group watchdog thread terminated with exception: " + TIMEOUT,
)


def console(ranks: int, late: int, times: int = 1) -> str:
    """The console of a job: of each line those of all ranks follow each other, and each is printed `times` times."""
    seqs = {rank: 60 if rank == late else 100 for rank in range(ranks)}
    return "".join(
        f"[rank{rank}]:{line.format(rank=rank, seq=seq, done=seq - 1, ran=600_000 + rank % 7 + time)}\n"
        for time in range(times)
        for line in LINES
        for rank, seq in seqs.items()
    )


def test_no_limit_of_lines_cuts_the_watchdogs_of_a_large_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PER_KIND", 20)
    others = "".join(f"[rank{rank}]: NCCL version 2.21.{rank}+cuda12.4\n" for rank in range(50))
    (tmp_path / "console.log").write_text(others + console(200, late=150, times=3))
    evidence = gather(tmp_path, Limits())
    kinds = [fact.kind for fact in evidence.facts]
    assert kinds.count("nccl_version") == 20 and kinds.count("watchdog_timeout") == 200
    assert kinds.count("watchdog_status") == 400 and kinds.count("watchdog_abort") == 1
    assert {fact.fields["desc"] for fact in evidence.facts if fact.kind == "watchdog_timeout"} == {"default_pg"}
    (finding,) = [item for item in detect(evidence) if item.status == "confirmed"]
    assert finding.ranks == (150,) and len(finding.victims) == 199


def test_the_last_state_of_a_rank_counts(tmp_path: Path) -> None:
    lines = console(3, late=-1).replace(
        "Rank 1] Received a dump signal. Last enqueued NCCL work: 100", "Rank 1] Last enqueued work: 7"
    )
    (tmp_path / "console.log").write_text(lines + lines.replace("enqueued work: 7,", "enqueued work: 9,"))
    status = [
        fact.fields for fact in gather(tmp_path, Limits()).facts if fact.kind == "watchdog_status" and fact.rank == 1
    ]
    assert [(fields.get("work"), fields["last_enqueued"]) for fields in status] == [(100, 100), (None, 9)]


def test_the_work_is_linear_in_the_ranks(tmp_path: Path) -> None:
    counts = []
    for ranks in (200, 800):
        (tmp_path / "console.log").write_text(console(ranks, late=150))
        evidence, read = calls_in(lambda: gather(tmp_path, Limits()))
        _, decided = calls_in(lambda: detect(evidence))  # noqa: B023 - called at once
        counts.append((read, decided))
    (few_read, few_decided), (read, decided) = counts
    assert read < 4.5 * few_read and decided < 4.5 * few_decided


def test_lines_of_any_number_of_ranks_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "MOST_WATCHDOG_LINES", 100)
    folded, facts = nccl.Watchdogs(), list[LogFact]()
    for rank in range(5000):
        for seq in range(2):
            fields = {"seq": seq, "op": "ALLREDUCE", "numel_in": 1}
            folded.take(LogFact("watchdog_timeout", rank, "x.log", 1, "", fields), facts)
    assert len(facts) == 100 and len(folded.places) <= 200 and len(folded.per_kind) <= 100


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Heartbeat monitor timed out! Process will be terminated after dumping debug info.", "monitor_stuck"),
        ("First PG on this rank that detected no heartbeat of its watchdog.", "monitor_stuck"),
        (
            "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
            "monitor_stuck",
        ),
        (
            "Terminating the process after attempting to dump debug info, due to collective timeout or exception.",
            "watchdog_abort",
        ),
        ("Heartbeat monitor started.", None),
    ],
)
def test_a_watchdog_that_gives_no_sign_of_life(tmp_path, line, kind):
    (path := tmp_path / "x.log").write_text(AT + GROUP.format(rank=3) + line + "\n")
    facts = [(f.kind, f.rank, f.fields["desc"]) for f in gather(path, Limits()).facts if "desc" in f.fields]
    assert facts == ([(kind, 3, "default_pg")] if kind else [])


def test_how_long_a_watchdog_was_stuck_outlives_its_later_lines(tmp_path):
    head = f"[rank3]:{AT}{GROUP.format(rank=3)}"
    (path := tmp_path / "x.log").write_text(
        f"{head}ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress\n"
        f"{head}Terminating the process after attempting to dump debug info, "
        "due to ProcessGroupNCCL watchdog hang.\n"
    )
    assert [fact.fields["stuck_s"] for fact in gather(path, Limits()).facts if "stuck_s" in fact.fields] == [600]
