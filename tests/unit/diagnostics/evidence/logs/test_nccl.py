"""NCCL's own log of calls: which lines are read, and what is kept of them."""

import pytest

from diagnostics.evidence.logs.nccl import CALLS, NcclCalls
from diagnostics.evidence.model import LogFact

OLD = (  # NCCL 2.4 to 2.28.
    "gpu1:13135:13922 [0] NCCL INFO AllReduce: opCount 1a sendbuff 0x10048f82700 recvbuff 0x10048f82800 count 64 "
    "datatype 7 op 0 root 0 comm 0x7f0c741162f0 [nranks=2] stream 0x7f0c74002f00"
)
RCCL = (
    "n1:71:93 [3] NCCL INFO AllGather: opCount ff sendbuff 0x7f01 recvbuff 0x7f02 acc (nil) count 4096 datatype 9 op 0 "
    "root 0 comm 0x55aa [nranks=16] stream 0x55bb task 2 globalrank 11"
)


def facts(*lines: str) -> list[LogFact]:
    calls = NcclCalls()
    calls.feed("".join(f"{line}\n" for line in ("first", *lines)).encode(), 1)
    return calls.facts("job.log")


@pytest.mark.parametrize(
    ("line", "process", "comm_rank", "place", "text"),
    [
        (OLD, "gpu1:13135", None, 26, "all_reduce [64] float32 sum"),
        (f"12: {OLD}", "gpu1:13135", None, 26, "all_reduce [64] float32 sum"),
        (RCCL, "n1:71", 11, 255, "all_gather [4096] bfloat16"),
        (OLD.replace("AllReduce", "Broadcast"), "gpu1:13135", None, 26, "broadcast [64] float32 root 0"),
        (OLD.replace("datatype 7", "datatype 99"), "gpu1:13135", None, 26, "all_reduce [64] sum"),
    ],
)
def test_a_call(line: str, process: str, comm_rank: int | None, place: int, text: str) -> None:
    (fact,) = facts(line)
    assert (fact.kind, fact.rank, fact.line, fact.fields["process"]) == (CALLS, None, 2, process)
    assert fact.fields["comm_rank"] == comm_rank
    assert [(at, [call.text for call in calls]) for at, calls in fact.fields["calls"].items()] == [(place, [text])]


@pytest.mark.parametrize(
    "line",
    [
        OLD[: OLD.index("[nranks")],  # Cut off.
        OLD.replace("count 64", "count 6gpu1:1"),  # Another process wrote in between.
        OLD.replace("opCount 1a", "opCount -1"),
        OLD.replace("[0] NCCL", "NCCL"),
        "NCCL INFO opCount is the number of an operation: opCount 5",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert facts(line) == []


def test_the_end_of_a_log_is_kept() -> None:
    calls = NcclCalls()
    for place in range(5000):
        calls.feed(f"{OLD.replace('opCount 1a', f'opCount {place:x}')}\nstep {place}\n".encode(), 2 * place + 1)
        calls.feed(b"loss 0.1\n" * 10, 0)
    (fact,) = calls.facts("job.log")
    assert [*fact.fields["calls"]] == [4998, 4999] and fact.line == 9999
    whole = "\n".join(OLD.replace("opCount 1a", f"opCount {place:x}") for place in range(5000))
    (fact,) = facts(whole)
    assert [*fact.fields["calls"]] == [*range(4000, 5000)]
