"""Answers of NCCL's RAS, in both forms: what differs between ranks is told, and no cause is confirmed by one moment."""

import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.formatting import ranks_spoken
from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Owner
from diagnostics.evidence.reader import Source
from diagnostics.evidence.readers import ras
from diagnostics.report.diagnosis import document
from diagnostics.report.model import Report
from diagnostics.report.terminal import render

HEAD = """NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0  {comms:8}         4         8        32        32   RUNNING  {errors}

Errors
======

"""
DIFFER = """Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124

  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 7
  Rank 3 has not launched any operations -- GPU 3 managed by process 323023 on node 10.137.190.123

"""
LOST = """INCOMPLETE
  Missing communicator data from 1 job process
  Process 60004 on node 10.4.109.13 managing GPU 0

#0-0 (b3398875b8b2a063) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 0 managed by process 60004 on node 10.4.109.13

Warnings
========

"""


NO_ANSWER = "no answer: Process 60004 on node 10.4.109.13 managing GPU 0"
OLDER = """DEAD
  2 job processes are considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5
  Process 3487985 on node 172.16.64.213 managing GPU 6

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  The missing ranks: 21,22

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

"""
"""As NCCL 2.24 and 2.25 list them."""


def member(rank: int, launched: int) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    place = {"host": "10.0.0.1", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank}
    return {"rank": rank, **place, "status": status, "collective_counts": {"Broadcast": 3, "AllReduce": launched}}


def as_json(counts: list[int], missing: list[int]) -> bytes:
    lost = [{"rank": rank, "host": "h", "status": {"unresponsive": True, "considered_dead": False}} for rank in missing]
    item = {"hash": "0xfa93", "size": len(counts) + len(missing), "ranks": [*map(member, range(len(counts)), counts)]}
    head = {"nccl_version": "2.28.7", "cuda_runtime_version": 13000, "communicators_count": 1}
    return json.dumps({**head, "communicators": [{**item, "missing_ranks": lost}]}, indent=2).encode()


HONEST = (HEAD.format(comms=1, errors="MISMATCH") + DIFFER).encode()
DAMAGED = as_json([41], []).replace(b'"rank": 0', b'"rank": "zero"')


def reported(folder: Path, content: bytes) -> tuple[Report, list[str]]:
    (folder / "ras.txt").write_bytes(content)
    report = diagnose(folder)
    return report, [note.partition(": ")[2] for note in report.notes if note.startswith("ras.txt")]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (HONEST, ["AllGather: 30 ranks launched 640; 2 ranks launched 641 (ranks 12 and 13)"]),
        (
            (HEAD.format(comms=1, errors="INCOMPLETE") + LOST).encode(),
            [NO_ANSWER],
        ),
        (
            as_json([41, 40, 41], [3]),
            [
                "AllReduce of communicator 0xfa93: rank 1 launched 40; ranks 0 and 2 launched 41",
                "no answer from rank 3 of communicator 0xfa93",
            ],
        ),
    ],
)
def test_differences_between_ranks_are_told_and_confirm_nothing(
    tmp_path: Path, content: bytes, text: list[str]
) -> None:
    report, notes = reported(tmp_path, content)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    assert notes[: len(text)] == text


@pytest.mark.parametrize(
    "content", [(HEAD.format(comms=1, errors="OK") + "Warnings\n========\n").encode(), as_json([41] * 4, [])]
)
def test_an_answer_without_differences_is_read_and_is_not_health(tmp_path: Path, content: bytes) -> None:
    report, notes = reported(tmp_path, content)
    assert (report.outcome, notes) == ("undecided", []) and [row.kind for row in report.coverage] == ["ras"]


@pytest.mark.parametrize(
    ("content", "ranks"),
    [
        ((HEAD.format(comms=1, errors="INCOMPLETE") + OLDER).encode(), (21, 22)),
        ((HEAD.format(comms=1, errors="INCOMPLETE") + LOST).encode(), (1,)),
        ((HEAD.format(comms=1, errors="INCOMPLETE") + OLDER.replace("\n", "\r\n")).encode(), (21, 22)),
        (as_json([41, 41], [2]), (2,)),
        # NCCL 2.28.9 leaves a comma out.
        (as_json([41, 41], [2]).replace(b'"host": "h",', b'"host": "h"'), (2,)),
    ],
)
def test_ranks_that_do_not_answer_are_those_that_the_others_wait_for(
    tmp_path: Path, content: bytes, ranks: tuple[int, ...]
) -> None:
    report, _ = reported(tmp_path, content)
    assert report.waiting is not None and report.waiting.unanswered == ranks
    assert [report.suspicions[0].cause, report.suspicions[0].ranks] == ["hang.rank_killed", ranks]
    assert ranks_spoken(ranks) in render(document(report), columns=200, colour=False) and not report.root_causes


@pytest.mark.parametrize(
    "content",
    [
        (HEAD.format(comms=4, errors="INCOMPLETE") + LOST).encode(),  # Rank 1 of one of four groups.
        as_json([41, 41], [2]).replace(b'"size"', b'"nranks"'),
        LOST.join(["NCCL version 2.26.2\n\nJob summary\n===========\n\n", ""]).encode(),  # Its table is missing.
        (HEAD.format(comms=1, errors="INCOMPLETE") + OLDER[: OLDER.index("21,22")]).encode(),  # Cut off.
    ],
)
def test_ranks_of_a_smaller_group_or_of_a_cut_answer_are_none_of_the_job(tmp_path: Path, content: bytes) -> None:
    report, notes = reported(tmp_path, content)
    assert (
        report.waiting is not None
        and report.waiting.unanswered == ()
        and any("no answer" in n or "dead" in n for n in notes)
    )
    assert "does not answer NCCL's RAS" in render(document(report), columns=200, colour=False)


@pytest.mark.parametrize(
    ("content", "ranks"),
    [
        (as_json([41, 40, 41, 41], []), (1,)),
        (as_json([41, 40, 40, 41], []), ()),  # No majority.
        (HONEST, (3,)),  # Of another operation, two ranks are ahead of 30.
    ],
)
def test_ranks_that_launched_fewer_operations_are_suspected(
    tmp_path: Path, content: bytes, ranks: tuple[int, ...]
) -> None:
    report, _ = reported(tmp_path, content)
    assert report.waiting is not None and report.waiting.absent == ranks and not report.root_causes
    assert not ranks or report.suspicions[0].ranks == ranks
    screen = render(document(report), columns=200, colour=False)
    assert ("launched fewer collectives" in screen) == bool(ranks)


def test_the_reader_says_what_each_rank_launched_and_leaves_the_verdict_to_the_analysis(tmp_path: Path) -> None:
    """NCCL's text lists the ranks of the small side only: those that it leaves out are the rest of the job."""
    few, rest = {"AllGather": {12: 641, 13: 641}, "AllReduce": {3: 0}}, {"AllGather": 640, "AllReduce": 7}
    of_text = {op: {rank: few[op].get(rank, rest[op]) for rank in range(32)} for op in few}
    of_json = {"AllReduce": {0: 41, 1: 40, 2: 40, 3: 41}}
    for content, expected in ((HONEST, of_text), (as_json([41, 40, 40, 41], []), of_json)):
        (tmp_path / "ras.txt").write_bytes(content)
        source = Source(tmp_path / "ras.txt", "ras.txt", content[:4096], Limits(), Owner())
        facts = [fact.fields for fact in ras.read(source).facts if fact.kind == ras.COUNTS]
        assert {fields["op"]: fields["launched"] for fields in facts} == expected
        assert all("ranks" not in fields for fields in facts)


def test_a_log_that_begins_with_an_answer_is_read_to_its_end(tmp_path: Path) -> None:
    line = (
        "[rank3]:[E1130 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=57, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600008 "
        "milliseconds before timing out.\n"
    )
    report, notes = reported(tmp_path, HONEST + line.encode())
    assert notes and report.waiting is not None and [wait.ranks for wait in report.waiting.waits] == [(3,)]
    assert [row.kind for row in report.coverage] == ["ras", "log"]
