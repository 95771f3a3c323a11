"""The first collective of a group, as its ranks' watchdogs tell of it."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.report.model import Report
from tests.unit.diagnostics.analysis.divergence.test_from_watchdogs import STATUS

DDP = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/job/train.py", line 692, in main
[rank{rank}]: RuntimeError: DDP expects same model across all ranks, but Rank {rank} has 51 params, while rank 0 has 0.
"""


def first(rank: int, size: int = 4, completed: int = -1, seq: int = 1) -> str:
    status = STATUS["2.13"].format(rank=rank, seq=seq, enqueued=seq, completed=completed)
    return (
        f"[rank{rank}]:[E606 09:09:08.1 ProcessGroupNCCL.cpp:757] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType=ALLGATHER, NumelIn=1, NumelOut={size}, Timeout(ms)=600000) ran for "
        f"600004 milliseconds before timing out.\n[rank{rank}]:[E606 09:09:08.2 ProcessGroupNCCL.cpp:2395] {status}\n"
    )


def said(folder: Path, text: str) -> Report:
    (folder / "job.log").write_text(text)
    return diagnose(folder)


def test_all_ranks_and_what_they_raised_afterwards(tmp_path: Path) -> None:
    text = "".join(map(first, range(4))) + "".join(DDP.format(rank=rank) for rank in range(4))
    (root,) = said(tmp_path, text).root_causes
    assert (root.cause, root.ranks, root.victims, root.position) == ("hang.startup", (), (0, 1, 2, 3), 1)


def test_a_rank_that_left_no_line_leaves_it_open(tmp_path: Path) -> None:
    report = said(tmp_path, "".join(map(first, range(3))))
    assert not report.root_causes
    assert (report.suspicions[0].cause, report.suspicions[0].ranks) == ("hang.timeout_budget", (3,))
    assert report.waiting is not None and report.waiting.silent == (3,)


def test_a_later_collective_is_not_start_up(tmp_path: Path) -> None:
    report = said(tmp_path, "".join(first(rank, completed=99, seq=100) for rank in range(4)))
    assert not report.root_causes and "hang.startup" not in [suspicion.cause for suspicion in report.suspicions]


def test_an_exception_before_the_timeout_is_the_cause(tmp_path: Path) -> None:
    raised = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/job/train.py", line 5, in f\n'
    report = said(tmp_path, raised + "[rank3]: ValueError: bad batch\n" + "".join(map(first, range(3))))
    assert [(root.cause, root.ranks) for root in report.root_causes] == [("hang.rank_raised", (3,))]


def test_a_mesh_of_gloo_that_was_never_complete(tmp_path: Path) -> None:
    text = "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.h:301] Connect timeout [none]\n"
    (tmp_path / "job.log").write_text(text)
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "hang.rendezvous" and "GLOO_SOCKET_IFNAME" in text_of(root).remedies[1].change


def barrier(size: int, joined: int) -> str:
    return (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: "
        f"store_based_barrier_key:1 (world_size={size}, worker_count={joined}, timeout=0:30:00)\n"
    )


def test_more_processes_than_the_group_has_ranks(tmp_path: Path) -> None:
    (root,) = said(tmp_path, barrier(4, 8)).root_causes
    assert root.cause == "hang.rendezvous" and text_of(root).summary.startswith("More processes joined a group")
    assert "nnodes * nproc_per_node" in text_of(root).remedies[0].change


def test_fewer_processes_have_not_come(tmp_path: Path) -> None:
    (root,) = said(tmp_path, barrier(4, 3)).root_causes
    assert root.cause == "hang.rendezvous" and text_of(root).summary.startswith("Start-up never completed")


def test_ranks_that_wait_for_others_may_still_meet_unless_too_many_have_come(tmp_path: Path) -> None:
    waits = (
        "INFO: Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1"
    )
    text = f"{waits} (world_size=4, worker_count={{}}, timeout=0:30:00)\n"
    assert not said(tmp_path, text.format(3)).root_causes
    (root,) = said(tmp_path, text.format(8) * 3).root_causes
    assert root.cause == "hang.rendezvous"


GLOO = "RuntimeError: [/x/gloo/transport/tcp/{place}: {why}\n"


@pytest.mark.parametrize(
    ("place", "why", "sure"),
    [
        ("pair.cc:799] connect [172.31.71.170]:13195", "Connection refused", False),  # A peer may have ended.
        ("socket.cc:142] rv != -1. -1 vs -1. connect", "Network is unreachable", True),
    ],
)
def test_a_connection_that_gloo_could_not_make(tmp_path: Path, place: str, why: str, sure: bool) -> None:
    report = said(tmp_path, GLOO.format(place=place, why=why))
    (root,) = [finding.finding for finding in report.findings if finding.finding.cause == "hang.rendezvous"]
    assert (root in report.root_causes) == sure
    remedies = " ".join(str(remedy.change) for remedy in text_of(root).remedies)
    assert root.status == "confirmed" and "GLOO_SOCKET_IFNAME" in remedies


BIND = "The server socket has failed to bind to [::]:98 (errno: 13 - Permission denied)."
OF_LAUNCHER = 'Traceback (most recent call last):\n  File "/x/torch/distributed/run.py", line 794, in main\n'


@pytest.mark.parametrize("before", ["", OF_LAUNCHER])
def test_a_port_of_the_administrator(tmp_path: Path, before: str) -> None:
    report = said(
        tmp_path, f"{before}torch.distributed.DistNetworkError: The server socket has failed to listen. {BIND}\n"
    )
    (root,) = report.root_causes
    assert (root.cause, report.outcome) == ("hang.rendezvous", "crashed")
    assert "between 1024 and 65535" in text_of(root).remedies[0].change


INIT = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 31, in <module>\n    dist.init_process_group()\n'
    '  File "/x/torch/distributed/rendezvous.py", line 95, in _tcp_rendezvous_handler\n    store = TCPStore()\n'
)
AGENT = (
    'Traceback (most recent call last):\n  File "/x/torch/distributed/run.py", line 715, in run\n    elastic_launch(\n'
    '  File "/x/torch/distributed/elastic/agent/server/api.py", line 613, in _assign_worker_ranks\n'
    '  File "/x/torch/distributed/elastic/utils/store.py", line 31, in get_all\n    data = store.get(key)\n'
)


@pytest.mark.parametrize(
    "text",
    [
        INIT + "RuntimeError: No route to host\n",
        AGENT + "RuntimeError: Socket Timeout\n",
        AGENT.replace("get_all", "_create_tcp_store") + "ValueError: host not found: Name or service not known\n",
        AGENT + "torch.distributed.DistStoreError: Socket Timeout\n",
    ],
)
def test_a_connection_that_failed_while_ranks_met(tmp_path: Path, text: str) -> None:
    assert [root.cause for root in said(tmp_path, text).root_causes] == ["hang.rendezvous"]


def test_the_same_text_in_training_is_that_of_a_lost_peer(tmp_path: Path) -> None:
    step = '[rank1]:   File "/x/torch/distributed/distributed_c10d.py", line 9, in all_reduce\n'
    text = f"[rank1]: Traceback (most recent call last):\n{step}[rank1]: RuntimeError: Connection refused\n"
    assert not said(tmp_path, text).root_causes


@pytest.mark.parametrize(("raising", "culprits"), [(2, (2,)), (1, (0, 1))])
def test_ddp_says_which_rank_found_other_parameters(tmp_path: Path, raising: int, culprits: tuple[int, ...]) -> None:
    text = DDP.format(rank=raising).replace(f"[rank{raising}]: ", "")
    (root,) = said(tmp_path, text).root_causes
    assert (root.cause, root.ranks) == ("hang.rank_raised", culprits)


def init(rank: int, phase: str) -> str:
    return (
        f"[rank{rank}]: node1:{100 + rank}:{200 + rank} [{rank}] NCCL INFO ncclCommInitRankConfig comm 0x5{rank}b0 "
        f"rank {rank} nranks 4 cudaDev {rank} nvmlDev {rank} busId {rank}1000 commId 0xab12 - Init {phase}\n"
    )


BEGUN = "".join(init(rank, "START") for rank in range(4))
WAITING = "".join(first(rank) for rank in (0, 1, 3))


def test_the_rank_without_init_complete_is_named_with_the_stage(tmp_path: Path) -> None:
    text = BEGUN + "".join(init(rank, "COMPLETE") for rank in (0, 1, 3)) + WAITING
    (root,) = said(tmp_path, text).root_causes
    assert (root.cause, root.ranks, root.victims) == ("hang.startup", (2,), (0, 1, 3))
    assert "(Init START) and did not complete it" in text_of(root).summary


def test_the_rank_that_never_came_to_the_set_up_is_named_if_it_left_other_lines(tmp_path: Path) -> None:
    begun = "".join(init(rank, "START") for rank in (0, 1, 3))
    assert not said(tmp_path, begun + WAITING).root_causes, "its node's log may be absent"
    (root,) = said(tmp_path, "[rank2]: NCCL version 2.21.5+cuda12.4\n" + begun + WAITING).root_causes
    assert (root.cause, root.ranks) == ("hang.startup", (2,))
    assert "none of its lines shows Init START" in text_of(root).summary


@pytest.mark.parametrize(
    "text",
    [
        init(0, "START") + init(0, "COMPLETE") + first(0),  # One rank's log.
        BEGUN + "".join(init(rank, "COMPLETE") for rank in range(4)) + WAITING,
        BEGUN + WAITING,  # None is complete: nobody stands out.
        BEGUN + init(0, "COMPLETE") + WAITING,
        BEGUN + "".join(init(rank, "COMPLETE") for rank in (0, 1, 3)) + first(0, completed=99, seq=100),
    ],
)
def test_nobody_is_named_where_the_lines_of_the_set_up_do_not_differ_by_rank(tmp_path: Path, text: str) -> None:
    assert not said(tmp_path, text).root_causes


def test_without_a_hang_the_ranks_are_told_but_not_blamed(tmp_path: Path) -> None:
    report = said(tmp_path, BEGUN + "".join(init(rank, "COMPLETE") for rank in (0, 1, 3)))
    assert not report.root_causes
    assert report.statement.startswith("NCCL completed the set-up of 3 of 4 ranks; rank 2 began it (Init START)")


@pytest.mark.parametrize(
    "why", ["Connect timeout [10.0.0.2]:3411", "SO_ERROR: Connection refused, remote=[10.2.0.2]:3"]
)
def test_a_peer_of_gloo_that_did_not_answer_may_have_ended(tmp_path: Path, why: str) -> None:
    at = "../third_party/gloo/gloo/transport/tcp/pair.cc:144"
    (root,) = said(tmp_path, f"RuntimeError: Gloo connectFullMesh failed with [{at}] {why}\n").root_causes
    assert (root.cause, root.confidence) == ("hang.rendezvous", 0.6)
    assert "look into the log of the peer first" in text_of(root).remedies[0].change
    assert "These lines do not show whether that peer was still running" in text_of(root).summary


OF_MONITOR = (
    '  File "/x/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py", line 1255, in {}\n'
    '  File "/x/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py", line 119, in _call_store\n'
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.\n"
)


@pytest.mark.parametrize(("function", "at_start"), [("num_nodes_waiting", False), ("next_rendezvous", True)])
def test_the_monitor_of_a_running_job_is_no_start(tmp_path: Path, function: str, at_start: bool) -> None:
    roots = said(tmp_path, OF_MONITOR.format(function)).root_causes
    assert [root.cause for root in roots] == ["hang.rendezvous"] * at_start


@pytest.mark.parametrize("lost", [True, False])
def test_a_store_that_was_lost_had_been_reached(tmp_path: Path, lost: bool) -> None:
    text = "[W1120 10:00:07.1 TCPStore.cpp:106] [c10d] recvValue failed on SocketImpl(fd=3): Connection reset by peer\n"
    failed = OF_MONITOR.format("_call_store")
    roots = said(tmp_path, (text if lost else "") + failed).root_causes
    assert [root.cause for root in roots] == ["hang.rendezvous"] * (not lost)


CLOSED = (
    "Traceback (most recent call last):\n"
    '  File "/x/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py", line 676, in run\n'
    "    raise RendezvousClosedError\n"
    "torch.distributed.elastic.rendezvous.api.{}\n"
)
STOPPED = "W0410 06:28:49.53 1359 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal\n"


@pytest.mark.parametrize(
    ("type_", "other", "roots"),
    [
        ("RendezvousClosedError", "", ["hang.rendezvous"]),
        ("RendezvousClosedError", STOPPED, ["env.job_stopped"]),
        ("RendezvousTimeoutError", STOPPED, ["hang.rendezvous"]),
    ],
)
def test_a_rendezvous_is_closed_by_a_node_that_ended_first(
    tmp_path: Path, type_: str, other: str, roots: list[str]
) -> None:
    for node, text in enumerate((CLOSED.format(type_), other)):
        (tmp_path / f"node_{node}.log").write_text(text)
    root_causes = diagnose(tmp_path).root_causes
    assert [root.cause for root in root_causes] == roots
    closed = "found the rendezvous closed" in text_of(root_causes[0]).summary
    assert closed == (type_ == "RendezvousClosedError" and not other) and (
        not closed or root_causes[0].confidence == 0.6
    )


CHANNEL = "NCCL INFO Channel 00/0 : {rank}[{rank}] -> {peer}[{peer}] via P2P/CUMEM"
STAGES = {
    "affinity": "NCCL INFO Setting affinity for GPU {rank} to ff",
    "trees": "NCCL INFO Trees [0] 1/-1/-1->{rank}->-1 [1] 1/-1/-1->{rank}->-1",
    "channels": CHANNEL,
    "rings": "NCCL INFO Connected all rings",
    "all_trees": "NCCL INFO Connected all trees",
}


def stage(rank: int, name: str) -> str:
    return f"node1:{100 + rank}:{200 + rank} [{rank}] {STAGES[name].format(rank=rank, peer=(rank + 1) % 4)}\n"


def stages(*names: str, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> str:
    return "".join(stage(rank, name) for name in names for rank in ranks)


def of_subgroup(rank: int, phase: str) -> str:
    return init(rank, phase).replace(f"rank {rank} nranks 4", f"rank {rank % 2} nranks 2").replace("0xab12", "0xcd34")


UNPREFIXED = BEGUN.replace("[rank0]: ", "").replace("[rank1]: ", "").replace("[rank2]: ", "").replace("[rank3]: ", "")
MOST = (0, 1, 3)
COMPLETE = "".join(init(rank, "COMPLETE") for rank in range(4))


@pytest.mark.parametrize("begun", [BEGUN, UNPREFIXED])
@pytest.mark.parametrize(
    ("text", "reached", "missing"),
    [
        (stages("channels") + stages("rings", ranks=MOST), "Channel .. via", "Connected all rings"),
        (stages("affinity") + stages("trees", ranks=MOST), "Setting affinity", "Trees"),
        (stages("channels", "rings") + stages("all_trees", ranks=MOST), "Connected all rings", "Connected all trees"),
        # Connections are made at the first collective.
        (COMPLETE + stages("channels") + stages("rings", ranks=MOST), "Init COMPLETE", "Connected all rings"),
    ],
)
def test_the_rank_that_is_behind_is_named_with_its_stage(
    tmp_path: Path, begun: str, text: str, reached: str, missing: str
) -> None:
    (root,) = said(tmp_path, begun + text + WAITING + first(2)).root_causes
    assert (root.cause, root.ranks, root.victims) == ("hang.startup", (2,), MOST)
    summary = text_of(root).summary
    assert f'is "{reached}"' in summary and f'none shows "{missing}"' in summary and "0xab12" in summary
    report = said(tmp_path, begun + text)
    assert not report.root_causes and f'printed "{missing}", and rank 2 did not' in report.statement


def test_a_rank_that_has_not_come_to_the_collective_has_no_connections_either(tmp_path: Path) -> None:
    text = BEGUN + COMPLETE + stages("channels", "rings", ranks=MOST)
    assert not [root for root in said(tmp_path, text + WAITING).root_causes if root.cause == "hang.startup"]


@pytest.mark.parametrize("skipped", ["affinity", "trees", "channels"])
def test_a_stage_that_one_rank_does_not_print_is_passed_by_a_later_one(tmp_path: Path, skipped: str) -> None:
    text = stages(skipped, ranks=MOST) + stages("rings")
    for end in ("", COMPLETE):
        assert not [root for root in said(tmp_path, BEGUN + text + end + WAITING).root_causes if root.ranks]


def test_the_stages_of_a_communicator_are_not_those_of_one_before_it(tmp_path: Path) -> None:
    whole = BEGUN + stages("channels", "rings", "all_trees") + COMPLETE
    second = "".join(of_subgroup(rank, "START") for rank in range(4))
    assert not said(tmp_path, whole + second + stages("channels") + WAITING).root_causes
    third = whole + BEGUN.replace("0xab12", "0xef56") + stages("channels") + stages("rings", ranks=MOST)
    (root,) = said(tmp_path, third + WAITING).root_causes
    assert root.ranks == (2,) and "communicator 0xef56" in text_of(root).summary


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        (BEGUN + stages("channels"), 'the last stage that all ranks 0-3 printed is "Channel .. via"'),
        ("".join(init(rank, "START") for rank in MOST), "no line is of rank 2: either"),
        ("".join(init(rank, "START") for rank in MOST) + stages("affinity", ranks=MOST),
         '"Setting affinity", which takes all ranks; the log has no line of rank 2'),
        (BEGUN + stages("channels") + stages("rings", ranks=(0, 1)), '"Channel .. via"'),  # Two of four.
    ],
)  # fmt: skip
def test_how_far_a_set_up_came_is_said_without_blame(tmp_path: Path, text: str, statement: str) -> None:
    report = said(tmp_path, text)
    assert not report.root_causes and statement in report.statement
    assert not [root for root in said(tmp_path, text + WAITING).root_causes if root.ranks]
