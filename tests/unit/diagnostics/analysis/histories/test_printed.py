"""Calls that torch and gloo print when they end ranks vote like recorded ones; a false alarm blames nobody."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.histories.printed import add_printed, message_bytes
from diagnostics.analysis.histories.read import read
from diagnostics.evidence.calls import Wire
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import LogFact
from tests.dist.ranks import free_port
from tests.patience import stretched
from tests.unit.diagnostics.hang.dumps import Job, Op, Shown, confirmed, detect, evidence, unexplained, write

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
STEP = [Op(size=72, line=12)]
BARRIER = "SequenceNumber={seq}OpType=BARRIER"


def fingerprint(op: str, size: int, seq: int = 12) -> str:
    kind = "TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), memory_format=(nullopt))"
    return f"SequenceNumber={seq}, OpType={op}, TensorShape=[{size}], TensorDtypes=Float, TensorDeviceTypes={kind}"


def printed(rank: int, own: str, peer: int, other: str, line: int, place: int | None = None) -> str:
    return (
        f"Traceback (most recent call last):\n"
        f'  File "/job/train.py", line {line}, in train\n    dist.all_reduce(loss)\n'
        f'  File "{TORCH}", line 3245, in all_reduce\n    work = group.allreduce([tensor], opts)\n'
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {rank if place is None else place} is "
        f"running collective: CollectiveFingerPrint({own}), but Rank {peer} is running collective: "
        f"CollectiveFingerPrint({other}).Collectives differ in the following aspects:  Op type: REDUCEvs BROADCAST\n"
    )


def diagnosed(folder: Path, texts: dict[int, str]) -> list[Shown]:
    for rank, text in texts.items():
        (folder / f"rank_{rank}.log").write_text(text, encoding="utf-8")
    return [finding for finding in detect(gather(folder, Limits())) if finding.status == "confirmed"]


@pytest.mark.parametrize(
    ("deviating", "line", "cause"),
    [
        (fingerprint("ALLREDUCE", 512), 10, "hang.signature_mismatch"),
        (fingerprint("BROADCAST", 8), 20, "hang.collective_mismatch"),
    ],
)
def test_both_sides_of_detail_vote(tmp_path: Path, deviating: str, line: int, cause: str) -> None:
    text = fingerprint("ALLREDUCE", 128)
    texts = {rank: printed(rank, text, 1, deviating, 10) for rank in (0, 2)}
    (finding,) = diagnosed(tmp_path, {**texts, 1: printed(1, deviating, 0, text, line)})
    assert (finding.cause, finding.ranks, finding.victims, finding.position) == (cause, (1,), (0, 2), 13)
    assert [place.line for place in finding.where] == [line, 10]
    assert "not recorded" not in finding.summary or line == 20


def test_a_barrier_is_known_though_torch_prints_another_operation_of_the_peer(tmp_path: Path) -> None:
    text, barrier = fingerprint("ALLREDUCE", 64), BARRIER.format(seq=12)
    texts = {rank: printed(rank, text, 1, "SequenceNumber=0OpType=REDUCE", 10) for rank in (0, 2)}
    (finding,) = diagnosed(tmp_path, {**texts, 1: printed(1, barrier, 0, "SequenceNumber=0OpType=GATHER", 20)})
    assert (finding.cause, finding.ranks) == ("hang.collective_mismatch", (1,))
    assert "Rank 1 calls barrier (train.py:20)" in finding.summary and "reduce [64]" in finding.summary


def test_of_one_rank_the_text_names_both_sides(tmp_path: Path) -> None:
    text = printed(0, fingerprint("ALLREDUCE", 64), 1, "SequenceNumber=0OpType=REDUCE", 10)
    (finding,) = diagnosed(tmp_path, {0: text})
    assert finding.cause == "hang.collective_mismatch" and finding.ranks == (0, 1) and "barrier" in finding.summary


def test_a_rank_names_the_first_peer_that_differs_so_those_before_agree_with_it(tmp_path: Path) -> None:
    (finding,) = diagnosed(tmp_path, {1: printed(1, fingerprint("ALLREDUCE", 64), 3, fingerprint("ALLREDUCE", 8), 10)})
    assert finding.ranks == (3,) and set(finding.victims) == {0, 1, 2}


def test_of_old_versions_without_numbers_the_operations_are_those_that_are_printed(tmp_path: Path) -> None:
    own = fingerprint("ALLGATHER", 6).partition(", ")[2]
    (finding,) = diagnosed(tmp_path, {1: printed(1, own, 0, "OpType=_ALLGATHER_BASE", 10)})
    assert (finding.cause, finding.ranks, finding.position) == ("hang.collective_mismatch", (0, 1), None)
    assert "allgather_base" in finding.summary and "barrier" not in finding.summary and finding.confidence < 0.7


def test_an_exit_code_beside_calls_that_differ_is_no_cause(tmp_path: Path) -> None:
    text = printed(1, fingerprint("ALLREDUCE", 25), 0, fingerprint("BROADCAST", 1), 10)
    ended = "E0209 api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 170581) of binary: /usr/bin/python3.10\n"
    (tmp_path / "job.log").write_text(text + ended)
    findings = [finding for finding in detect(gather(tmp_path, Limits())) if finding.status == "confirmed"]
    assert [finding.cause for finding in findings] == ["hang.collective_mismatch"]


def test_ranks_that_state_the_same_call_are_a_false_alarm(tmp_path: Path) -> None:
    texts = {
        rank: printed(rank, BARRIER.format(seq=7), 1 - rank, "SequenceNumber=0OpType=GATHER", 20) for rank in (0, 1)
    }
    assert diagnosed(tmp_path, texts) == []


def test_numbers_of_a_sub_group_are_not_taken_for_ranks_of_the_job(tmp_path: Path) -> None:
    text, other = fingerprint("ALLREDUCE", 64), fingerprint("ALLREDUCE", 8)
    texts = {rank: printed(rank, text, 1, other, 10, place=rank - 4) for rank in (4, 6)}
    (finding,) = diagnosed(tmp_path, {**texts, 5: printed(5, other, 0, text, 10, place=1)})
    assert finding.ranks == (5,) and set(finding.victims) == {4, 6}
    assert finding.group is not None and finding.group.desc == "" and "at position 13." in finding.summary


@pytest.mark.parametrize(
    ("wire", "world", "size"),
    [
        (("all_reduce", 10, "float32"), 2, 12),
        (("all_reduce", 100, "float64"), 3, 136),
        (("all_reduce", 8_000_000, "float32"), 3, 969_700),
        (("reduce", 1000, "float32"), 3, 668),
        (("all_gather", 1000, "float32"), 3, 2000),
        (("broadcast", 10, "float32"), 2, 40),
    ],
)
def test_sizes_of_messages_are_those_that_gloo_sends(wire: tuple[str, int, str], world: int, size: int) -> None:
    """Measured on torch 2.13: each is one side of an `op.preamble.length <= op.nbytes. X vs Y` of a real job."""
    op, amount, dtype = wire
    assert size in message_bytes(Wire(op, (amount,), (dtype,)), world)


LOOP = [Op(size=64, line=10), Op(size=256, line=11)]


def cut(folder: Path, last: dict[int, Op], lost: int, received: int, expected: int, world: int = 3) -> list[Shown]:
    """Gloo ends `lost`, which leaves no dump, in the call of each rank that comes after three rounds of a loop."""
    write(folder, Job({rank: [*LOOP * 3, last[rank]] for rank in range(world)}, backend="gloo"), without=(lost,))
    fields = {"received_bytes": received, "expected_bytes": expected}
    facts = [LogFact("gloo_mismatch", lost, "stderr.log", 2, f"{received} vs {expected}.", fields)]
    findings = detect(evidence(folder, world_size=world, facts=facts))
    return [finding for finding in findings if finding.status == "confirmed"]


def test_a_rank_that_gloo_ended_votes_with_the_call_that_its_buffer_fits(tmp_path: Path) -> None:
    last = {0: Op(size=128, line=20), 1: Op(size=512, line=20), 2: Op(size=128, line=20)}
    (finding,) = cut(tmp_path, last, 0, 344, 88)
    assert (finding.cause, finding.ranks, finding.position) == ("hang.signature_mismatch", (1,), 7)
    assert "ranks 0 and 2 have all_reduce [128]" in finding.summary


def test_a_size_that_fits_no_peer_is_the_deviating_ranks_own(tmp_path: Path) -> None:
    last = {0: Op(size=128, line=20), 1: Op(size=32, line=20), 2: Op(size=128, line=20)}
    (finding,) = cut(tmp_path, last, 1, 88, 24)
    assert (finding.cause, finding.ranks) == ("hang.signature_mismatch", (1,))
    assert "all_reduce with messages of 24 bytes" in finding.summary and 0.5 < finding.confidence < 0.65


def test_a_call_of_one_rank_that_meets_the_loops_next_is_a_conditional_one(tmp_path: Path) -> None:
    """The loop reduces 64 elements there in every round: a message of 4 bytes is no other size of that call."""
    last = {0: Op(size=1, line=30), 1: LOOP[0], 2: LOOP[0]}
    (finding,) = cut(tmp_path, last, 0, 44, 4)
    assert (finding.cause, finding.ranks) == ("hang.conditional_collective", (0,))


def test_a_size_of_another_call_of_the_loop_is_that_call(tmp_path: Path) -> None:
    (finding,) = cut(tmp_path, {0: LOOP[0], 1: LOOP[1], 2: LOOP[0]}, 1, 44, 172)
    assert (finding.cause, finding.ranks) == ("hang.conditional_collective", (1,))
    assert "Rank 1 skipped all_reduce [64]" in finding.summary


def test_sizes_of_no_recorded_call_name_nobody(tmp_path: Path) -> None:
    (finding,) = cut(tmp_path, {0: LOOP[0], 1: LOOP[0], 2: LOOP[0]}, 0, 999, 4)
    assert (finding.cause, finding.ranks) == ("hang.signature_mismatch", ())


SCRIPT = """\
import datetime, os, torch, torch.distributed as dist

def log_metrics():
    dist.all_reduce(torch.ones(1))

def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
    for step in range(5):
        dist.all_reduce(torch.ones(64))
        if step == 2 and dist.get_rank() == 0:
            log_metrics()

main()
"""


def test_a_call_that_gloo_retired_at_its_timeout_is_pending(tmp_path: Path) -> None:
    """Rank 1 never reaches the calls; a bucket that was issued behind the first one is no call that it misses alone."""
    buckets = [Op(size=72, line=12, wait=False), Op(size=8, line=12)]
    dumps = Job({0: [*STEP * 10, *buckets], 1: STEP * 10}, backend="gloo").play()
    for entry in dumps[0]["entries"]:
        entry["retired"] = True  # As gloo's recorder does when the wait ends, even by an exception.
    dumps[0]["pg_status"]["0"]["last_completed_collective"] = 12
    for rank, dump in dumps.items():
        (tmp_path / f"tr_{rank}").write_bytes(pickle.dumps(dump))
    assert "host_stall" not in dict(confirmed(evidence(tmp_path, world_size=2)))
    facts = [LogFact("gloo_timeout", 0, "err", 1, "Timed out waiting 15000ms for recv operation to complete")]
    (finding,) = unexplained(evidence(tmp_path, world_size=2, facts=facts))
    assert (finding.cause, finding.ranks, finding.victims, finding.position) == ("hang.host_stall", (1,), (0,), 11)
    assert "never reached all_reduce [72] float32 (#11" in finding.summary


def test_a_timeout_behind_a_call_that_all_ranks_made_is_not_of_that_call(tmp_path: Path) -> None:
    """It may be that of a receive, which gloo's recorder leaves out."""
    write(tmp_path, Job(dict.fromkeys(range(2), STEP * 10), backend="gloo"))
    facts = [LogFact("gloo_timeout", 0, "err", 1, "Timed out waiting 15000ms for recv operation to complete")]
    assert confirmed(evidence(tmp_path, world_size=2, facts=facts)) == []


@pytest.mark.extended
@pytest.mark.parametrize("level", ["DETAIL", "OFF"])
def test_real_ranks_of_gloo(tmp_path: Path, level: str) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3",
        "TORCH_DISTRIBUTED_DEBUG": level, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ranks = []
    for rank in range(3):
        log = (tmp_path / f"rank_{rank}.log").open("w")
        command = [sys.executable, "-X", "faulthandler", str(tmp_path / "job.py")]
        ranks.append(subprocess.Popen(command, cwd=tmp_path, env={**environment, "RANK": str(rank)}, stderr=log))
    for process in ranks:
        process.wait(stretched(60))
    rows = [(item[0], item[1]) for item in confirmed(gather(tmp_path, Limits()))]
    assert rows == ([("conditional_collective", (0,))] if level == "DETAIL" else [("signature_mismatch", ())])


NCCL = (
    "{before}{host}:{pid}:{pid} [{device}] NCCL INFO {op}: opCount {place:x} sendbuff 0x7f recvbuff (nil) "
    "count {count} datatype {dtype} op {reduce} root {root} comm {comm} [nranks={size}] stream 0x55{after}\n"
)


def nccl(rank: int, place: int, op: str = "AllReduce", **other: object) -> str:
    """Return a line as of NCCL 2.4 to 2.28; RCCL adds `after`."""
    call = {"host": "n1", "count": 1024, "dtype": 7, "reduce": 0, "root": 0, "size": 4, "comm": f"0x{rank}a"}
    call |= {"device": rank, "pid": 500 + rank, "before": "", "after": ""} | other  # type: ignore[dict-item]
    return NCCL.format(place=place, op=op, **call)


def logged(
    folder: Path, last: dict[int, dict[str, Any]], alike: int = 9, begin: int = 0, sizes: int = 3, **each: Any
) -> list[Shown]:
    """Diagnose a log in which the ranks make `alike` equal calls of so many sizes, and then those of `last`."""
    places = range(begin, begin + alike)
    calls = [nccl(rank, n, "AllGather", count=8 + n % sizes, dtype=9, **each) for n in places for rank in last]
    calls += [nccl(rank, begin + alike, **{**each, **other}) for rank, other in last.items()]
    (folder / "job.log").write_text("".join(calls), encoding="utf-8")
    return [finding for finding in detect(gather(folder, Limits())) if finding.status == "confirmed"]


@pytest.mark.parametrize("begin", [0, 0x139D])
@pytest.mark.parametrize(
    ("other", "cause"),
    [
        ({"op": "Broadcast"}, "hang.collective_mismatch"),
        ({"count": 1000}, "hang.signature_mismatch"),
        ({"dtype": 6}, "hang.signature_mismatch"),
        ({"reduce": 2}, "hang.signature_mismatch"),
        ({"op": "ReduceScatter"}, "hang.collective_mismatch"),
    ],
)
def test_calls_in_nccls_own_log_vote(tmp_path: Path, begin: int, other: dict[str, Any], cause: str) -> None:
    (finding,) = logged(tmp_path, {0: {}, 1: {}, 2: other, 3: {}}, begin=begin)
    assert (finding.cause, finding.ranks, finding.victims, finding.position) == (cause, (2,), (0, 1, 3), begin + 10)


def test_a_root_counts_where_the_operation_has_one(tmp_path: Path) -> None:
    rooted = {rank: {"op": "Broadcast", "root": int(rank == 1)} for rank in range(4)}
    (finding,) = logged(tmp_path, rooted)
    assert (finding.cause, finding.ranks) == ("hang.signature_mismatch", (1,))
    assert not logged(tmp_path, {rank: {"root": int(rank == 1)} for rank in range(4)})


@pytest.mark.parametrize(
    "before", ["", "[2026-11-24 10:00:00] ", "(RayTrainWorker pid=615, ip=10.72.7.6) ", "[1,0]<stdout>:"]
)
def test_what_stands_before_the_line_does_not_matter(tmp_path: Path, before: str) -> None:
    (finding,) = logged(tmp_path, {0: {}, 1: {}, 2: {"count": 8}, 3: {}}, before=before)
    assert (finding.cause, finding.ranks) == ("hang.signature_mismatch", (2,))


def test_rccl_states_the_rank_on_several_nodes(tmp_path: Path) -> None:
    last = {
        rank: {"host": f"n{rank // 2}", "device": rank % 2, "after": f" task 1 globalrank {rank}"} for rank in range(4)
    }
    calls = [nccl(rank, n, "AllGather", count=8 + n % 3, **last[rank]) for n in range(9) for rank in last]
    calls += [nccl(rank, 9, **last[rank] | ({"count": 3} if rank == 3 else {})) for rank in last]
    (tmp_path / "job.log").write_text("".join(calls), encoding="utf-8")
    (finding,) = (item for item in detect(gather(tmp_path, Limits())) if item.status == "confirmed")
    assert (finding.cause, finding.ranks) == ("hang.signature_mismatch", (3,))


def test_a_group_of_calls_counts_once(tmp_path: Path) -> None:
    group = "".join(nccl(rank, 5, count=count) for rank in range(4) for count in (7, 9))
    last = {0: {}, 1: {"count": 2}, 2: {}, 3: {}}
    (finding,) = logged(tmp_path, last)
    text = (tmp_path / "job.log").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines(keepends=True) if "opCount 5 " not in line]
    (tmp_path / "job.log").write_text("".join([*lines[:20], group, *lines[20:]]), encoding="utf-8")
    assert (
        [item.ranks for item in detect(gather(tmp_path, Limits())) if item.status == "confirmed"]
        == [finding.ranks]
        == [(1,)]
    )
    in_group = nccl(1, 9, count=5) + nccl(1, 9, count=6)
    (tmp_path / "job.log").write_text("".join([*lines[:-4], *(nccl(rank, 9) for rank in (0, 2, 3)), in_group]))
    assert not [item for item in detect(gather(tmp_path, Limits())) if item.status == "confirmed"], "which call is met?"


@pytest.mark.parametrize(
    "last",
    [
        {0: {}, 1: {}, 2: {}, 3: {}},
        {0: {}, 1: {}, 2: {"size": 2, "count": 8}, 3: {"size": 2}},  # Another communicator.
        {0: {}, 1: {}, 2: {"op": "Send"}, 3: {}},
        {0: {}, 1: {}, 2: {"host": "n2", "count": 8}, 3: {}},  # Devices are no ranks on two nodes.
        {0: {}, 1: {}, 2: {"count": 8}},  # It may be one of two nodes.
    ],
)
def test_calls_that_are_alike_or_cannot_be_compared(tmp_path: Path, last: dict[int, dict[str, Any]]) -> None:
    assert not logged(tmp_path, last)


def test_counts_are_compared_only_after_calls_that_agree(tmp_path: Path) -> None:
    last = {0: {}, 1: {}, 2: {"count": 8}, 3: {}}
    assert logged(tmp_path, last, begin=0x500)
    assert not logged(tmp_path, last, begin=0x500, sizes=1), "equal calls agree whatever they are counted from"
    assert not logged(tmp_path, last, begin=0x500, alike=7)
    logged(tmp_path, last, begin=0x500, alike=20)
    text = (tmp_path / "job.log").read_text(encoding="utf-8")
    some = [line for line in text.splitlines(keepends=True) if "opCount 510 " not in line or ":502:" not in line]
    (tmp_path / "job.log").write_text("".join(some), encoding="utf-8")
    assert not [finding for finding in detect(gather(tmp_path, Limits())) if finding.status == "confirmed"], (
        "a graph was replayed"
    )


def test_equal_calls_are_not_said_to_have_completed(tmp_path: Path) -> None:
    logged(tmp_path, {rank: {} for rank in range(4)})
    gathered = gather(tmp_path, Limits())
    reading = read(gathered)
    add_printed(gathered, reading)
    assert not reading.survey.ranks, "a line shows that a call was issued"


def test_a_rank_whose_last_lines_are_missing_blames_nobody(tmp_path: Path) -> None:
    text = "".join(nccl(rank, place) for place in range(9) for rank in range(4) if (rank, place) != (3, 8))
    for cut in (text, text[:-40], text.replace("opCount 8 sendbuff 0x7f recv", "opCount 8 sendbuff 0x7f n1:", 1)):
        (tmp_path / "job.log").write_text(cut, encoding="utf-8")
        assert not [finding for finding in detect(gather(tmp_path, Limits())) if finding.status == "confirmed"]
