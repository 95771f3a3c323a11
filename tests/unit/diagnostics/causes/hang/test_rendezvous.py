"""`hang.rendezvous`: ranks that wait in init_process_group for others, and a rendezvous that failed."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.stall.startup import StartupFailed, not_yet_met
from diagnostics.causes.hang.rendezvous import CAUSE
from diagnostics.contract import findings as level
from diagnostics.contract.findings import Finding, text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact
from tests.unit.diagnostics.analysis.calls import fact, job, waiting


def start(rank: int, state: str, lasted_s: float, worked_s: float, world: int = 3) -> LogFact:
    """As a rank writes it under `dtk watch`: in this state for so long, and so long since it last moved or worked."""
    fields: dict[str, Any] = {"state": state, "nranks": world, "alive_s": 1e9, "since_s": 1e9 - lasted_s}
    fields |= {"worked_s": 1e9 - worked_s, "frames": (Frame("/w/train.py", 4 + rank, "setup"),)}
    return LogFact("start", rank, f"start/rank_{rank:05d}.json", 0, f"rank {rank} is {state}", fields, 1e9)


def decided(*facts: LogFact) -> Finding:
    (finding,) = CAUSE.decide(explain(Evidence(Path("job"), Limits(), facts=list(facts), world_size=3)))
    return finding


def test_a_rank_that_stands_still_before_the_group_is_blamed() -> None:
    finding = decided(start(0, "meets", 40, 40), start(1, "started", 50, 50), start(2, "meets", 30, 30))
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (1,), (0, 2))
    assert finding.cost is not None and (finding.cost.value, finding.cost.unit) == (40.0, "s blocked")
    assert (finding.where[0].rank, finding.where[0].line) == (1, 5)


def test_a_rank_at_work_on_its_way_is_late_and_nobody_is_blamed() -> None:
    finding = decided(start(0, "meets", 40, 40), start(1, "started", 50, 0), start(2, "meets", 30, 30))
    assert (finding.status, finding.ranks, finding.victims) == ("undecided", (), (0, 2))


def test_ranks_that_all_stand_still_wait_for_nobody_and_nobody_is_blamed() -> None:
    finding = decided(*(start(rank, "started", 50, 40) for rank in range(3)))
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (), (0, 1, 2))
    assert "made no progress for 40 s" in text_of(finding).summary
    assert decided(*(start(rank, "started", 50, 40 * (rank > 0)) for rank in range(3))).status == "undecided"


def test_ranks_that_import_modules_are_not_said_to_stand_still() -> None:
    """Modules on a slow file system take minutes without CPU time."""
    importing = (Frame("<frozen importlib._bootstrap_external>", 1130, "get_data"), Frame("/w/train.py", 4, "<module>"))
    starts = [start(rank, "started", 50, 40) for rank in range(3)]
    starts[1].fields["frames"] = importing
    assert decided(*starts).status == "undecided"
    finding = decided(start(0, "meets", 40, 40), starts[1], start(2, "meets", 40, 40))
    assert (finding.status, finding.ranks) == ("undecided", ()) and "still running" in text_of(finding).summary
    blocked = (Frame("/w/helper.py", 4, "<module>"), *importing)  # A line of the module itself.
    starts[1].fields["frames"] = blocked
    assert decided(*starts).status == "confirmed"


def test_a_start_that_all_reached_and_the_watch_ended_blames_nobody() -> None:
    starts = [start(rank, "meets", 50, 40) for rank in range(3)]
    finding = decided(*starts, fact("watch_verdict", text="all 3 ranks waited in init_process_group for 50 s"))
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (), (0, 1, 2))
    assert "none has returned from it for 40 s" in text_of(finding).summary
    assert decided(*starts).status != "confirmed", "they may be about to meet"


def test_a_rank_that_left_nothing_is_named() -> None:
    finding = decided(start(0, "meets", 40, 40), start(1, "meets", 40, 40))
    assert finding.status == "undecided" and "rank 2" in text_of(finding).summary


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ([fact("rendezvous_timeout", 1, text="timed out after 900 s.")], "Start-up never completed: timed out"),
        ([fact("port_in_use", 0, text="address in use")], "The port of the rendezvous is in use by another"),
        ([fact("store_barrier", 0, text="5 joined", joined=5, size=4)], "More processes joined a group than it has"),
    ],
)
def test_what_failed_decides_the_words(facts: list[LogFact], words: str) -> None:
    (finding,) = CAUSE.decide(Stall(job({}, 2), startup=StartupFailed(tuple(facts))))
    assert (finding.status, finding.ranks) == ("confirmed", ()) and finding.victims == (facts[0].rank,)
    assert text_of(finding).summary.startswith(words)


LATER = LogFact("nccl_net", 0, "job.log", 9, "NCCL INFO Using network Socket", {"net": "Socket"})


@pytest.mark.parametrize(
    ("key", "absent"),
    [
        ("/default_pg/0//cpu//0/3", "The address of rank 3 is missing"),
        ("/default_pg/0//736781914428f04736f327d95027de1d//cpu//0/1", ""),
        ("/default_pg/0//1//cpu//0/1", ""),
        ("/default_pg/0//cuda//ncclUniqueId:0", ""),
        ("/torchelastic/role_info/3", ""),
    ],
)
def test_whose_address_gloo_waits_for(key: str, absent: str) -> None:
    text = f"DistStoreError: wait timeout after 12000ms, keys: {key}"
    finding = decided(LogFact("store_timeout", 0, "log", 1, text))
    said = text_of(finding).summary
    assert absent in said if absent else "address" not in said


def waits_in_store(lines: int, joined: int = 2, at: int = 5) -> LogFact:
    fields = {"waits": "Waiting", "stated": 0, "joined": joined, "size": 3, "count": lines}
    return LogFact("store_barrier", 0, "job.log", at, "Waiting in store based barrier", fields)


def test_a_rank_that_waits_in_the_barrier_of_the_store() -> None:
    finding = decided(waits_in_store(3))
    assert (finding.status, finding.victims) == ("undecided", (0,))
    assert text_of(finding).summary.startswith("Rank 0 waits for the other ranks while a group is created: 2 of 3")
    assert decided(waits_in_store(6)).status == "confirmed"  # For a minute.


def test_a_store_that_is_not_reached_is_named() -> None:
    fields = {"waits": "TCP client failed", "peer": "n0", "port": 29500, "why": "Connection refused", "count": 9}
    retries = LogFact("store_retry", None, "job.log", 5, "TCP client failed", fields)
    assert decided(retries).status == "undecided"
    assert text_of(decided(retries)).summary == "The store at n0:29500 was not reached: Connection refused."
    assert not text_of(decided(retries, LATER)).summary.startswith("The store")


def test_a_start_that_went_on_is_over() -> None:
    finding = decided(waits_in_store(6), LATER)
    assert finding.status != "confirmed" and not finding.victims


@pytest.mark.parametrize(
    ("kind", "rank", "went_on"),
    [
        ("job_stopped", None, False),  # The launcher's, the kernel's or another rank's lines say nothing of this one.
        ("xid", None, False),
        ("variable", 0, False),
        ("host_progress", 2, False),
        ("host_progress", 0, True),
        ("host_work", None, True),
        ("store_met", 2, True),
        ("gloo_timeout", 1, True),
    ],
)
def test_which_later_lines_prove_that_a_rank_went_on(kind: str, rank: int | None, went_on: bool) -> None:
    later = LogFact(kind, rank, "job.log", 9, kind, {"what": "", "direction": "recv"})
    for file, is_over in (("job.log", went_on), ("rank1.log", False)):
        facts = [waits_in_store(3), replace(later, file=file)]
        assert bool(not_yet_met(Evidence(Path("job"), Limits(), facts=facts))) is not is_over


def test_ranks_that_issued_collectives_had_met() -> None:
    (finding,) = CAUSE.decide(Stall(job({rank: waiting(2) for rank in range(2)}, 2)))
    assert finding.status == "undecided" and finding.victims == (0, 1)


def test_a_launcher_that_waits_for_others_at_its_exit_had_started(tmp_path: Path) -> None:
    (tmp_path / "node1.log").write_text(
        'Traceback (most recent call last):\n  File "/x/torch/distributed/elastic/agent/server/api.py", line 904, in '
        '_exit_barrier\n    barrier_timeout=self.t,\n  File "/x/torch/distributed/elastic/store.py"'
        ", line 31, in get_all\n    data = store.get(key)\nRuntimeError: Socket Timeout\n"
    )
    assert diagnose(tmp_path).root_causes == ()


STORE_AT = (
    'Traceback (most recent call last):\n  File "/x/torch/distributed/rendezvous.py", line 9, in _create_c10d_store\n'
)
BUSY = "The server socket has failed to listen on any local network address. "


@pytest.mark.parametrize(
    "log",
    [
        f"{BUSY}port: 29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use\n",
        f"torch.distributed.DistNetworkError: {BUSY}The server socket has failed to bind to [::]:29500 (errno: 98 - "
        "Address already in use).\n",
        f"{STORE_AT}RuntimeError: {BUSY}The server socket has failed to bind to [::]:29500 (errno: 98 - "
        "Address already in use).\n",
        f"{STORE_AT}RuntimeError: Address already in use\n",
        "RuntimeError: Address already in use\n",
    ],
)
@pytest.mark.parametrize("rank", [None, 0])
def test_a_port_that_another_process_holds_is_no_error_of_the_rank(tmp_path: Path, log: str, rank: int | None) -> None:
    prefix = "" if rank is None else f"[rank{rank}]: "
    (tmp_path / "train.log").write_text("".join(f"{prefix}{line}\n" for line in log.splitlines()))
    report = diagnose(tmp_path)
    assert ([root.cause for root in report.root_causes], report.outcome) == (["hang.rendezvous"], "crashed")
    assert "holds the port" in text_of(report.root_causes[0]).remedies[0].change


@pytest.mark.parametrize("head", ["[W socket.cpp:426]", "[W601 10:00:00.1 socket.cpp:464]"])
def test_warnings_of_addresses_alone_are_a_suspicion(tmp_path: Path, head: str) -> None:
    warning = (
        f"{head} [c10d] The server socket has failed to bind to [::]:38429 (errno: 98 - Address already in use).\n"
    )
    (tmp_path / "train.log").write_text(3 * warning)
    report = diagnose(tmp_path)
    assert (report.root_causes, report.outcome) == ((), "undecided")
    assert [each.finding.cause for each in report.findings if each.finding.suspected] == ["hang.rendezvous"]
    failed = "[E socket.cpp:462] [c10d] The server socket has failed to listen on any local network address.\n"
    # None of the addresses is left, in an excerpt that is cut there, and as a whole.
    for more in ("", f"{STORE_AT}RuntimeError: {BUSY}{warning[len(head) :]}"):
        (tmp_path / "train.log").write_text(warning + failed + more)
        assert [root.cause for root in diagnose(tmp_path).root_causes] == ["hang.rendezvous"]
    (tmp_path / "train.log").write_text(warning + failed + "".join(f"step {n} loss 2.0\n" for n in range(1, 20)))
    assert not diagnose(tmp_path).root_causes, "the job went on"


BARRIER = (
    "INFO:c10d:Waiting in store based barrier to initialize process group for rank: {}, key: store_based_barrier_key:1 "
    "(world_size=6, worker_count=4, timeout=0:30:00)\n"
)


@pytest.mark.parametrize(
    ("after", "waits"),
    [
        ("", True),
        ("INFO:c10d:Added key: store_based_barrier_key:1 to store for rank: 5\n", True),
        ("INFO:c10d:Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 6 nodes.\n", False),
        ("All distributed processes registered. Starting with 6 processes\n", False),
    ],
)
def test_a_barrier_that_is_complete_withdraws_who_had_not_come(tmp_path: Path, after: str, waits: bool) -> None:
    (tmp_path / "train.log").write_text(BARRIER.format(3) + after)
    (own,) = (each.finding for each in diagnose(tmp_path).findings if each.finding.cause == "hang.rendezvous")
    assert ("4 of 6" in text_of(own).summary) == waits


def test_a_port_of_the_programs_own_server_is_its_own_error(tmp_path: Path) -> None:
    lines = ("Traceback (most recent call last):", '  File "/job/serve.py", line 9, in start')
    (tmp_path / "train.log").write_text("\n".join((*lines, "OSError: [Errno 98] Address already in use")) + "\n")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["hang.rank_raised"]


@pytest.mark.parametrize(
    ("line", "lead"),
    [
        (
            "server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
            "The port of the rende",
        ),
        ("client socket has timed out after 60s while trying to connect to (n1, 29500).", "Start-up never completed"),
    ],
)
def test_a_port_in_use_is_said_first(tmp_path: Path, line: str, lead: str) -> None:
    (tmp_path / "job.log").write_text(f"torch.distributed.DistNetworkError: The {line}\n")
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "hang.rendezvous" and text_of(root).summary.startswith(lead)
    assert ("ss -ltnp" in text_of(root).missing) == (lead != "Start-up never completed")


def test_ranks_that_disagree_on_their_number_do_not_start(tmp_path: Path) -> None:
    line = "gpu1:77:90 [0] bootstrap.cc:1 NCCL WARN Bootstrap Root : mismatch in rank count from procs 4 : 8\n"
    (path := tmp_path / "train.log").write_text(line)
    (finding,) = CAUSE.decide(explain(gather(path, Limits())))
    assert (finding.status, finding.ranks) == ("confirmed", ())
    assert "disagree on how many" in text_of(finding).summary
    path.write_text("".join(f"step {n} loss 2.0\n" for n in range(1, 9)) + line)
    (finding,) = CAUSE.decide(explain(gather(path, Limits())))
    assert finding.status != "confirmed"


STACK = """\
Process {pid}: python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
{frames}    setup (train.py:14)
    <module> (train.py:52)
"""
TORCH = "    {} (torch/distributed/{})\n"
IN_STORE = TORCH.format("_create_c10d_store", "rendezvous.py:198")
INIT = IN_STORE + TORCH.format("init_process_group", "distributed_c10d.py:1710")
MESH = TORCH.format("_store_based_barrier", "distributed_c10d.py:900") + INIT[len(IN_STORE) :]
MESH += TORCH.format("init_device_mesh", "device_mesh.py:100")
GROUP = TORCH.format("_store_based_barrier", "distributed_c10d.py:900")
GROUP += TORCH.format("new_group", "distributed_c10d.py:4800")
NCCL = "n:9:9 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 3 cudaDev 0 busId 2c000 - Init COMPLETE\n"
REDUCES = TORCH.format("all_reduce", "distributed_c10d.py:2800")


@pytest.mark.parametrize(
    ("frames", "log", "expected"),
    [
        ([INIT] * 3, "global_world_sizes=[4]\n", (level.OPEN, "Of 4 ranks rank 3 left no stack.")),
        ([MESH] * 3, "global_world_sizes=[3]\n", (level.PLAUSIBLE, "All 3 ranks of the job are there")),
        ([GROUP] * 3, "global_world_sizes=[4]\n", (level.OPEN, "wait for others in new_group")),
        ([INIT] * 3, "", (level.SUSPECTED, "How many ranks the job has is not known.")),
        ([GROUP] * 3, "global_world_sizes=[3]\n", None),  # Groups that differ, or in another order.
        ([INIT, INIT, ""], "global_world_sizes=[3]\n", None),  # Rank 2 is late.
        ([INIT, INIT, REDUCES], "global_world_sizes=[3]\n", None),
        ([GROUP] * 3, "".join(f"step {n} loss 2.0\n" for n in range(1, 9)), None),
        ([INIT] * 3, NCCL + "global_world_sizes=[3]\n", None),  # The stacks are older than that line.
        ([INIT] * 3, "[rank3]: Traceback (most recent call last):\n[rank3]: ValueError: bad path\n", None),
    ],
)
def test_stacks_show_who_waits_while_a_group_is_created(
    tmp_path: Path, frames: list[str], log: str, expected: tuple[float, str] | None
) -> None:
    for rank, inner in enumerate(frames):
        (tmp_path / f"rank_{rank}.txt").write_text(STACK.format(pid=100 + rank, frames=inner))
    (tmp_path / "job.log").write_text(log)
    (finding,) = CAUSE.decide(explain(gather(tmp_path, Limits())))
    assert (finding.status == "confirmed") == (expected is not None)
    if expected is not None:
        assert (finding.confidence, finding.ranks, finding.victims) == (expected[0], (), (0, 1, 2))
        assert expected[1] in text_of(finding).summary and finding.where[0].line == 14
        roots = [root.cause for root in diagnose(tmp_path).root_causes]
        assert roots == ["hang.rendezvous"] * (finding.confidence >= level.SURE)
