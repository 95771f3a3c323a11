"""`storage.stall`: a process that really waits in the kernel, and what kernels write of silent storage."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from dtk.record.telemetry import Host
from tests.patience import stretched
from tests.unit.diagnostics.causes.nodes import decided, telemetry

# ruff: noqa: E501
ID = "storage.stall"
NFS = "[ 812.1] nfs: server filer-3 not responding, still trying\n"
STACK = (
    "Process 77: python train.py --local-rank=1\nPython v3.11.7 (/usr/bin/python)\n\n"
    'Thread 77 (idle): "MainThread"\n    read_batch (/job/data.py:41)\n    main (/job/train.py:9)\n'
)
SPAWN = """
import os, sys
print("opens", flush=True)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""
"""Until the file opens, the parent waits in the kernel in state D: the file is a FIFO that nobody writes."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_that_really_waits_for_a_file(tmp_path: Path) -> None:
    fifo = tmp_path / "data.bin"
    os.mkfifo(fifo)
    sampler = Host(RunPaths(tmp_path), 0, {})
    rank = subprocess.Popen([sys.executable, "-c", SPAWN, fifo], stdout=subprocess.PIPE)
    try:
        sampler._processes[1] = psutil.Process(rank.pid)
        assert rank.stdout is not None and rank.stdout.readline() == b"opens\n"
        time.sleep(0.5)
        samples = [{"kind": "sample", "time_s": 1e9 + 10 * n, "host": sampler.sample()} for n in range(5)]
    finally:
        fifo.open("wb").close()
        rank.communicate(timeout=stretched(30))
    (tmp_path / "job").mkdir()
    about = {"kind": "about", "every_s": 10.0, "cores": 2}
    lines = (json.dumps(line) + "\n" for line in (about, *samples))
    (tmp_path / "job" / "node_00000.jsonl").write_text("".join(lines))
    finding = decided(tmp_path / "job", ID)
    assert (finding.status, finding.ranks) == ("confirmed", (1,)) and "for 40 s" in text_of(finding).summary


def test_a_task_that_is_blocked_is_a_clue_only(tmp_path: Path) -> None:
    """A driver's lock leaves the same line, and the task may be another job's."""
    line = "Jun 16 19:18:08 n1 kernel: INFO: task python:78808 blocked for more than 120 seconds.\n"
    (tmp_path / "job.log").write_text(line)
    report = diagnose(tmp_path)
    assert not report.root_causes and [row.cause for row in report.suspicions] == [ID]
    steps = [f"step {n} loss 2.{n:03} 0.5 s/it\n" for n in range(90)]
    (tmp_path / "job.log").write_text("".join((*steps[:30], line, *steps[30:])))
    assert not diagnose(tmp_path).suspicions  # The job went on.


def test_a_wait_that_ended_or_was_short_is_none(tmp_path: Path) -> None:
    waits = {"ranks_in_disk_wait": [1]}
    for hosts in ([waits, waits, {}], [{}, {}, {}, waits]):
        (tmp_path / "node_00000.jsonl").write_text(telemetry(host=hosts))
        assert decided(tmp_path, ID).status == "undecided"


@pytest.mark.parametrize(
    ("line", "server"),
    [
        (NFS, "filer-3"),
        ("Nov 23 gpu7 kernel: LustreError: 11-0: Lustre: lfs-OST0001-osc-ffff88: Connection to lfs-OST0001 (at 10.0.0.1@o2ib) "
         "was lost; in progress operations using this service will wait for recovery to complete\n", "lfs-OST0001"),
        ("[ 99.0] ceph: mds0 hung\n", "mds0"),
        ("[ 99.0] nvme nvme1: I/O tag 12 (100c) opcode 0x2 (I/O Cmd) QID 5 timeout, aborting req_op:READ(0) size:4096\n",
         "nvme1"),
    ],
)  # fmt: skip
def test_what_kernels_write(tmp_path: Path, line: str, server: str) -> None:
    (tmp_path / "dmesg.txt").write_text(f"[ 1.0] Linux version 6.1\n{line}")
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == ID and f"The kernel reports that {server} does not respond" in text_of(root).summary


def test_it_is_why_a_rank_stands_in_file_io(tmp_path: Path) -> None:
    (tmp_path / "dmesg.txt").write_text(NFS)
    (tmp_path / "rank_1.txt").write_text(STACK.replace("read_batch", "read (/usr/lib/io.py:5)\n    read_batch"))
    finding = decided(tmp_path, ID)
    assert finding.status == "confirmed"


@pytest.mark.parametrize(
    "lines",
    [
        "[ 9.0] nfs: server filer-3 not responding, still trying\n[ 12.0] nfs: server filer-3 OK\n",
        "[ 9.0] ceph: mds0 hung\n[ 12.0] ceph: mds0 came back\n",
        "[ 99.0] blk_update_request: I/O error, dev sdb, sector 1234 op 0x0:(READ)\n",
    ],
)
def test_storage_that_answered_again_or_failed_at_once_stalls_nobody(tmp_path: Path, lines: str) -> None:
    (tmp_path / "dmesg.txt").write_text(f"[ 1.0] Linux version 6.1\n{lines}")
    report = diagnose(tmp_path)
    assert not report.root_causes and report.outcome == "undecided"
    silent_again = "[ 13.0] nfs: server filer-3 not responding, still trying\n"
    (tmp_path / "dmesg.txt").write_text(f"[ 1.0] Linux version 6.1\n{lines}{silent_again}")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [ID]


def dated(minutes: range) -> str:
    return "".join(f"2031-07-01 10:{n:02}:00 INFO step {n} loss 2.{n % 7}\n" for n in minutes)


SILENT = "[Tue Jul  1 10:{:02}:05 2031] nfs: server fs01 not responding, still trying\n"


@pytest.mark.parametrize(
    ("log", "is_stall"),
    [
        (dated(range(20)) + SILENT.format(20) + dated(range(21, 50)), False),
        (dated(range(20)) + SILENT.format(20) + dated(range(21, 24)), True),  # Batches that had been fetched before.
        (dated(range(20)) + SILENT.format(20) + dated(range(21, 50)) + SILENT.format(50), True),
        (dated(range(20)) + "Training complete\n" + SILENT.format(20), False),
    ],
)
def test_training_that_goes_on_or_has_ended_is_not_stalled(tmp_path: Path, log: str, is_stall: bool) -> None:
    (tmp_path / "job.log").write_text(log)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [ID] * is_stall


@pytest.mark.parametrize("end", ["Training complete\n", ""])
def test_the_kernels_log_beside_a_job_that_ended(tmp_path: Path, end: str) -> None:
    (tmp_path / "dmesg.txt").write_text(SILENT.format(49).replace(" 10:", " 09:"))
    (tmp_path / "job.log").write_text(dated(range(50)) + end)
    report = diagnose(tmp_path)
    assert [root.cause for root in report.root_causes] == ([] if end else [ID])
    assert any("the training had ended" in note for note in report.notes) == bool(end)


def test_the_last_line_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "dmesg.txt").write_text(
        SILENT.format(10) + SILENT.format(10).split("not")[0] + "OK\n" + SILENT.format(24)
    )
    (root,) = diagnose(tmp_path).root_causes
    assert [(item.line, "10:24:05" in str(item)) for item in root.evidence] == [(3, True)]
