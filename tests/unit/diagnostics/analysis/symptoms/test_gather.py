"""What log lines alone say of a job that stands still."""
# ruff: noqa: E501  # texts as they are printed

from pathlib import Path

import pytest

from diagnostics.analysis.symptoms.gather import symptoms
from diagnostics.analysis.symptoms.state import Symptoms
from diagnostics.contract.formatting import UNNAMED
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, Stacks, Thread
from diagnostics.report.diagnosis import document
from diagnostics.report.terminal import render
from tests.unit.diagnostics.analysis.divergence.test_from_watchdogs import hung, in_group, signal, timeout
from tests.unit.diagnostics.analysis.stall.test_from_observations import rank as observed
from tests.unit.diagnostics.analysis.stall.test_stack_evidence import inside


def gather_text(folder: Path, text: str) -> Evidence:
    (folder / "job.log").write_text(text)
    return gather(folder, Limits())


def read(folder: Path, text: str) -> Symptoms:
    result = symptoms(gather_text(folder, text))
    assert result is not None
    return result


def test_who_waits_since_when_and_how_far_the_others_are(tmp_path: Path) -> None:
    symptoms = read(tmp_path, "".join(hung(rank) for rank in (0, 2)) + signal(1))
    (wait,) = symptoms.waits
    assert (wait.ranks, wait.op, wait.seq, wait.numel, wait.group) == ((0, 2), "all_reduce", 42, 1024, "default_pg")
    assert (wait.completed, wait.enqueued, wait.waited_s, wait.timeout_s) == (41, 43, 600.012, 600)
    assert wait.since == "09:50:00" and not wait.first
    assert [(other.ranks, other.completed, other.enqueued) for other in symptoms.others] == [((1,), 41, 41)]
    assert symptoms.behind == (1,) and not symptoms.by_position


def test_the_size_of_a_group_tells_who_is_silent(tmp_path: Path) -> None:
    text = hung(1, op="_ALLGATHER_BASE").replace("NumelOut=1024", "NumelOut=4096")
    symptoms = read(tmp_path, text)
    assert symptoms.waits[0].members == 4 and symptoms.silent == (0, 2, 3)
    text = hung(1, op="_REDUCE_SCATTER_BASE", numel=4096).replace("NumelOut=4096", "NumelOut=512")
    assert read(tmp_path, text).waits[0].members == 8
    assert read(tmp_path, text.replace("NumelOut=512", "NumelOut=500")).waits[0].members is None


def test_a_status_alone_tells_the_position(tmp_path: Path) -> None:
    status = hung(3).splitlines()[-1]
    assert [(wait.ranks, wait.op, wait.seq) for wait in read(tmp_path, f"{status}\n").waits] == [((3,), "", 42)]
    both = read(tmp_path, hung(0) + f"{status}\n")
    assert [(wait.ranks, wait.op, wait.seq) for wait in both.waits] == [((0, 3), "all_reduce", 42)]


def test_lines_without_a_group_join_the_only_one_with_that_call(tmp_path: Path) -> None:
    symptoms = read(tmp_path, in_group(0, "7", 0) + timeout(1) + timeout(2, seq=9))
    assert [(wait.ranks, wait.seq, wait.group) for wait in symptoms.waits] == [((0, 1), 42, "7"), ((2,), 9, "")]


def test_torch_1_and_gloo_state_no_position(tmp_path: Path) -> None:
    old = "[E ProcessGroupNCCL.cpp:587] [Rank {}] Watchdog caught collective operation timeout: "
    old += "WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) ran for 1803000 milliseconds before timing out.\n"
    gloo = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation\n"
    symptoms = read(tmp_path, old.format(1) + old.format(3) + gloo)
    assert [(wait.ranks, wait.op, wait.seq, wait.waited_s) for wait in symptoms.waits] == [
        ((1, 3), "broadcast", None, 1803.0), ((), "a gloo recv", None, 1800.0)
    ]  # fmt: skip


def test_a_log_in_which_nothing_waits(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("NCCL version 2.21.5+cuda12.4\n")
    assert symptoms(gather(tmp_path, Limits())) is None


GLOO = "RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.1.17]:22780"


def raised(line: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    step()\n{line}\n'


def test_a_rank_that_lost_a_peer_tells_so_though_nothing_waits(tmp_path: Path) -> None:
    symptoms = read(tmp_path, raised(GLOO))
    assert (
        symptoms.lost == "Connection closed by peer [10.0.1.17]:22780"
        and symptoms.lost_peer == ()
        and not symptoms.waits
    )
    named = "".join(f"[rank3]: {line}\n" for line in raised(GLOO).splitlines())
    assert read(tmp_path, named).lost_peer == (3,)


STORE_GONE = (
    "[rank1]:[W1229 22:06:38.5 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=67, addr=[n1]:36214, "
    "remote=[n1]:43145): Broken pipe\n"
)


@pytest.mark.parametrize(
    ("text", "lost", "ranks"),
    [
        (STORE_GONE, "sendBytes failed on SocketImpl", (1,)),
        (
            "W mpi_ops.cc:422 : Aborted: Horovod has been shut down. This was caused by an exception\n",
            "Horovod has",
            (),
        ),
        ("An MPI communication peer process has unexpectedly disconnected.  This\n", "MPI communication peer", ()),
    ],
)
def test_a_line_that_only_tells_that_a_peer_is_gone(
    tmp_path: Path, text: str, lost: str, ranks: tuple[int, ...]
) -> None:
    symptoms = read(tmp_path, text)
    assert symptoms.lost.startswith(lost) and symptoms.lost_peer == ranks
    assert not read(tmp_path, text + raised("RuntimeError: Timed out waiting 600ms for send operation")).lost


def test_ranks_that_leave_after_the_training_lost_nobody(tmp_path: Path) -> None:
    assert symptoms(gather_text(tmp_path, "{'train_runtime': 12.1, 'epoch': 3.0}\n" + STORE_GONE)) is None


def test_an_unnamed_process_that_aborted(tmp_path: Path) -> None:
    symptoms = read(
        tmp_path, "/home/u/run.sh: line 184: 2324239 Aborted                 (core dumped) python train.py\n"
    )
    assert symptoms.aborted == (UNNAMED,)


def test_a_store_that_does_not_answer(tmp_path: Path) -> None:
    line = "[rank2]:[W5 socket.cpp:428] [c10d] While waitForInput, poolFD failed with (errno: 0 - Success).\n"
    symptoms = read(tmp_path, line)
    assert symptoms.timed_out.startswith("waitForInput") and not symptoms.lost


REACHED = (
    "[E ProcessGroupGloo.cpp:138] Rank {} successfully reached monitoredBarrier, but received errors while waiting for "
    "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n"
)
GAVE_UP = "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 9000ms for recv operation to complete\n"


def test_who_came_to_a_monitored_barrier_waits_for_rank_0(tmp_path: Path) -> None:
    symptoms = read(tmp_path, REACHED.format(2) + GAVE_UP + REACHED.format(3))
    assert [(wait.ranks, wait.op) for wait in symptoms.waits] == [
        ((2, 3), "monitored_barrier")
    ] and symptoms.absent == (0,)


def test_rank_0_at_a_monitored_barrier_tells_who_did_not_come(tmp_path: Path) -> None:
    symptoms = read(
        tmp_path, REACHED.format(2) + "[E x.cpp:1] [Rank 0]: Rank 1 failed to pass monitoredBarrier in 9000 ms\n"
    )
    assert symptoms.absent == (1,) and symptoms.limit_s == 9


def test_a_closed_connection_says_that_rank_0_is_gone(tmp_path: Path) -> None:
    closed = f"{GLOO.removeprefix('RuntimeError: ')}\n"
    symptoms = read(tmp_path, REACHED.format(2) + closed)
    assert not symptoms.waits and not symptoms.absent
    assert symptoms.lost.startswith("Rank 2 successfully") and symptoms.lost_peer == (2,)
    assert read(tmp_path, REACHED.format(2) + GAVE_UP + closed).absent == (0,)  # Rank 2 closed it once it gave up.


def test_who_did_not_come_to_a_monitored_barrier(tmp_path: Path) -> None:
    symptoms = read(tmp_path, raised("RuntimeError: [Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 2000 ms"))
    assert symptoms.absent == (4, 5)


@pytest.mark.parametrize(
    ("text", "side"),
    [
        (
            "[rank2]: RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running inconsistent "
            "collective: CollectiveFingerPrint(OpType=REDUCE, TensorShape=[7])",
            "rank 2 called OpType=REDUCE, TensorShape=[7]",
        ),
        (
            "h:1:2 [0] init.cc:9 NCCL WARN Mismatched collective detected, please check your collective calls at and "
            "around rank 17. You can use NCCL_DEBUG=INFO",
            "around rank 17, as NCCL says",
        ),
    ],
)
def test_a_mismatch_of_which_one_side_is_told(tmp_path: Path, text: str, side: str) -> None:
    assert str(read(tmp_path, text + "\n").differ) == side


def test_why_nccl_gave_up(tmp_path: Path) -> None:
    text = (
        "[rank2]: torch.distributed.DistBackendError: NCCL error in: /p/NCCL.cpp:1331, unhandled system error\n"
        "[rank2]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    )
    symptoms = read(tmp_path, text)
    assert (symptoms.failed, symptoms.failure, symptoms.results) == (
        (2,),
        "ncclSystemError",
        frozenset({"ncclSystemError"}),
    )
    last = "[rank2]: Last error:\n[rank2]: socketStartConnect: Connect to 127.0.0.1<45069> failed : refused\n"
    symptoms = read(tmp_path, text + last)
    assert symptoms.failure.startswith("socketStartConnect") and symptoms.inside_node and symptoms.refused


def test_an_empty_last_error_is_none(tmp_path: Path) -> None:
    text = "ncclSystemError: System call failed.\nLast error:\n\n    return pg.recv([tensor], source, tag)\n"
    assert read(tmp_path, text).failure == "ncclSystemError"


def test_ranks_that_ended_without_a_word(tmp_path: Path) -> None:
    rows = "".join(
        f"[{n}]:\n  time      : 2024-03-05_07:01:51\n  host      : a\n  rank      : {n} (local_rank: {n})\n"
        f"  exitcode  : 1 (pid: {70 + n})\n  error_file: <N/A>\n"
        for n in range(3)
    )
    assert read(tmp_path, rows).failed_silently == (0, 1, 2)


def test_horovod_tells_which_ranks_did_not_come(tmp_path: Path) -> None:
    head = (
        "[2026-11-01 10:00:00.1: W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to "
        "be reduced, "
        "gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. \n"
    )
    assert read(tmp_path, head + "Missing ranks:\n1: [grads_0, grads_1 ...]\n3!: [grads_0]\n\n5: [x]\n").absent == (
        1,
        3,
    )
    assert read(tmp_path, head + "Stalled ops:\ngrads_0 [missing ranks: 2, 4]\n").absent == (2, 4)
    assert read(tmp_path, head + "Stalled ops: grads_0 [ready ranks: 1, 5, 4, 0], b [ready ranks: 1]").absent == (2, 3)
    assert read(tmp_path, head.replace("\n", "Stalled ranks:\n") + "0: [grads_0]\n").absent == (0,)
    went_on = "".join(f"iter {n}: loss 3.5, time 9.00ms, mfu 1.00%\n" for n in range(12))
    (tmp_path / "job.log").write_text(head + "Missing ranks:\n1: [grads_0]\n" + went_on)
    assert symptoms(gather(tmp_path, Limits())) is None, "they came after all"


def test_torchcomms_tells_that_a_call_timed_out_but_not_which(tmp_path: Path) -> None:
    line = "[TC][rank={}][name=world] Aborting process due to timeout on rank {} - "
    line += "timeout watchdog detected operation timeout"
    glog = "E1121 10:00:00.123456 77 TorchCommNCCLX.cpp:1] "
    symptoms = read(tmp_path, "".join(f"[rank{n}]:{glog}{line.format(n, n)}\n" for n in (0, 3)))
    assert [(wait.ranks, wait.op) for wait in symptoms.waits] == [((0, 3), "")]
    text = f"[rank1]:{glog}[TC][rank=1][name=world] nccl hit async error on rank 1: unhandled system error\n"
    assert read(tmp_path, text).failure == "unhandled system error"


def test_the_rank_of_the_default_group_goes_before_a_launchers_role_and_local_rank(tmp_path: Path) -> None:
    head = "[rank0]:  what():  [PG ID 0 PG GUID 0(default_pg) Rank 4] Process group watchdog thread terminated: "
    caught = timeout(4)
    symptoms = read(tmp_path, head + caught[caught.index("[Rank 4]") :])
    assert [wait.ranks for wait in symptoms.waits] == [(4,)]


def test_a_rank_that_gave_up_lost_no_peer(tmp_path: Path) -> None:
    waits = (
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 9, in train',
        "    dist.monitored_barrier(group)",
        '  File "/lib/torch/distributed/distributed_c10d.py", line 3812, in monitored_barrier',
        "RuntimeError: [/gloo/transport/tcp/buf.cc:81] Timed out waiting 60000ms for recv operation to complete",
    )
    symptoms = read(tmp_path, "\n".join(waits) + "\n")
    assert [(wait.ranks, wait.op, wait.site) for wait in symptoms.waits] == [((), "monitored_barrier", "train.py:9")]
    assert symptoms.timed_out.startswith("Timed out waiting") and not symptoms.lost
    key = "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /ready"
    symptoms = read(tmp_path, "step 10 loss 2.1\n" + "\n".join(waits[:2]) + f"\n{key}\n")
    assert not symptoms.waits and symptoms.timed_out.startswith("wait timeout after")


def test_a_status_joins_the_call_of_a_line_without_a_group(tmp_path: Path) -> None:
    symptoms = read(tmp_path, hung(3).splitlines()[-1] + "\n" + timeout(1))
    assert [(wait.ranks, wait.op, wait.group) for wait in symptoms.waits] == [((1, 3), "all_reduce", "default_pg")]
    assert symptoms.waits[0].waited_s


def test_cuda_s_reason_goes_with_the_result_of_nccl(tmp_path: Path) -> None:
    text = (
        "node-1: ncclUnhandledCudaError: Call to CUDA function failed.\nnode-1: Cuda failure 'initialization error'\n"
    )
    assert read(tmp_path, text).failure == "ncclUnhandledCudaError: Cuda failure 'initialization error'"


TIMED_OUT = "RuntimeError: [/gloo/transport/tcp/buf.cc:81] Timed out waiting 60000ms for recv operation to complete"


def ended(rank: int, op: str, error: str, line: int = 9) -> str:
    frames = (
        "Traceback (most recent call last):",
        f'  File "/job/train.py", line {line}, in train',
        f"    dist.{op}(x)",
        f'  File "/lib/torch/distributed/distributed_c10d.py", line 3812, in {op}',
        error,
    )
    return "".join(f"[rank{rank}]: {text}\n" for text in frames)


def test_a_side_thread_whose_rank_is_unknown(tmp_path: Path) -> None:
    thread = (
        "Exception in thread Thread-1 (_run):\nTraceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n    self.run()\n'
        '  File "/job/train.py", line 19, in _run\n    queue.put(item["x"])\nKeyError: \'x\'\n'
    )
    assert read(tmp_path, thread + ended(0, "barrier", TIMED_OUT)).side_error == "KeyError: 'x'"


INTERRUPTED = """\
W1129 18:33:47.095000 1464 torch/distributed/elastic/agent/server/api.py:753] Received 2 death signal, shutting down workers
W1129 18:33:47.095000 1464 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1856 closing signal SIGINT
"""
IGNORED = """\
W1129 18:34:17.096000 1464 torch/distributed/elastic/multiprocessing/api.py:1047] Unable to shutdown process 1856 via 2, forcefully exiting via 9
"""
WAITED = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/env/torch/distributed/c10d_logger.py", line 83, in wrapper
[rank{0}]:     return func(*args, **kwargs)
[rank{0}]:            ^^^^^^^^^^^^^^^^^^^^^
[rank{0}]:   File "/env/torch/distributed/distributed_c10d.py", line 5356, in barrier
[rank{0}]:     work.wait()
[rank{0}]: RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:50412. \
This is typically caused by a remote worker crashing.

[rank{0}]: During handling of the above exception, another exception occurred:

[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/job/train.py", line 36, in train
[rank{0}]:     dist.barrier()
[rank{0}]:   File "/env/torch/distributed/c10d_logger.py", line 85, in wrapper
[rank{0}]:     msg_dict = _get_msg_dict(func.__name__, *args, **kwargs)
[rank{0}]:   File "/env/torch/distributed/c10d_logger.py", line 53, in _get_msg_dict
[rank{0}]:     def _get_msg_dict(func_name, *args, **kwargs) -> dict[str, Any]:
[rank{0}]: KeyboardInterrupt
"""


def test_ranks_that_no_interrupt_could_end_waited_where_they_lost_their_peers(tmp_path: Path) -> None:
    result = read(tmp_path, INTERRUPTED + IGNORED + WAITED.format(1) + WAITED.format(2))
    assert [(wait.ranks, wait.op, wait.site) for wait in result.waits] == [((1, 2), "barrier", "train.py:36")]
    assert round(result.waits[0].waited_s or 0) == 30
    assert not result.lost and result.silent == (), "torchrun killed rank 0 first, so that it could not say anything"
    assert symptoms(gather_text(tmp_path, INTERRUPTED + WAITED.format(1))) is None, "a wait of any step"
    assert read(tmp_path, WAITED.format(1)).lost.startswith("Connection closed")


def test_several_threads_that_communicate() -> None:
    start, reduce = Frame("/lib/python3.11/threading.py", 982, "run"), Frame("/job/train.py", 45, "reduce")
    call = Thread("Thread-1", (*inside("all_reduce", (reduce,)), start))
    waits, logs = (Thread("Thread-2", (Frame("/job/train.py", 44, name), start)) for name in ("reduce", "write_logs"))
    joins = Thread("MainThread", (Frame("/job/train.py", 60, "main"),), main=True)
    communicates = Thread("MainThread", inside("barrier", joins.frames), main=True)

    def threaded(*threads: Thread) -> tuple[int, ...]:
        ranks = [observed(number, inside("all_reduce", (reduce,))) for number in range(2)]
        stacks = [Stacks(dump.rank, dump.file, threads, dump.time_s) for dumps, _ in ranks for dump in dumps]
        facts = [fact for _, facts in ranks for fact in facts]
        result = symptoms(Evidence(Path("nowhere"), Limits(), world_size=2, stacks=stacks, facts=facts))
        assert result is not None
        return result.threaded

    assert threaded(waits, call, joins) == threaded(logs, call, communicates) == (0, 1)
    assert threaded(logs, waits, communicates) == threaded(logs, call, joins) == ()


def test_a_check_that_found_one_call_under_two_numbers_is_told(tmp_path: Path) -> None:
    print_of = "CollectiveFingerPrint(SequenceNumber={}, OpType=ALLREDUCE, TensorShape=[10], TensorDtypes=Float)"
    sides = (
        f"Rank 0 is running collective: {print_of.format(5)}, but Rank 1 is running collective: {print_of.format(6)}"
    )
    (tmp_path / "job.log").write_text(
        f"step 1 loss 3\nRuntimeError: Detected mismatch between collectives on ranks. {sides}\n"
    )
    report = diagnose(tmp_path)
    assert not report.root_causes and "counted different numbers" in render(document(report), columns=300, colour=False)


CLOSED = "{host}:{pid}:9{pid} [{own}] NCCL {how} localRank {left}{more}\n"
INFO, WARN = "INFO [Service thread] Connection closed by", "WARN [Service thread] Could not receive type from"


def closes(remaining: int, peers: tuple[int, ...], how: str = INFO, host: str = "n1", more: str = "") -> str:
    return "".join(
        CLOSED.format(host=host, pid=300 + own, own=own, how=how, left=remaining, more=more) for own in peers
    )


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (closes(3, (0, 1, 2)), (3,)),
        (closes(2, (0, 1, 3), WARN, more=", res=3, closed=0"), (2,)),
        (closes(3, (0, 1, 2)) + closes(3, (0, 1, 2)), (3,)),
        # As at the end of any job.
        (closes(3, (0, 1, 2)) + closes(2, (0, 1)) + closes(1, (0,)), ()),
        (closes(0, (0,)), ()),
        (closes(0, (0,)) + closes(0, (0,), host="n2"), ()),
        ("{'train_runtime': 119.8, 'train_loss': 1.2}\n" + closes(3, (0, 1, 2)), ()),
    ],
)
def test_the_rank_that_all_processes_of_a_node_lost(tmp_path: Path, text: str, ranks: tuple[int, ...]) -> None:
    (tmp_path / "job.log").write_text(text)
    report = diagnose(tmp_path)
    assert not report.root_causes
    named = {suspicion.cause: suspicion.ranks for suspicion in report.suspicions}
    assert named.get("hang.rank_raised", ()) == named.get("hang.rank_killed", ()) == ranks


def test_the_local_rank_of_one_of_several_nodes_is_not_the_rank(tmp_path: Path) -> None:
    init = "n1:300:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 8 nranks 16 cudaDev 0 - Init COMPLETE\n"
    (tmp_path / "job.log").write_text(init + closes(3, (0, 1, 2)))
    assert all(3 not in suspicion.ranks for suspicion in diagnose(tmp_path).suspicions)
