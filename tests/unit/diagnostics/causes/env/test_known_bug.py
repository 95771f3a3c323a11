"""Known faults: confirmed by their own text, and no verdict by a version alone."""

from pathlib import Path

import pytest

from diagnostics.analysis.environment.job import recorded
from diagnostics.analysis.environment.known_bugs import Installed, bug_in, known_bugs
from diagnostics.analysis.environment.situation import gpu_names
from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.env.known_bug import seen
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits

# ruff: noqa: E501
NVLS = (
    "[rank2]: Traceback (most recent call last):\n[rank2]:   File \"/job/train.py\", line 9, in <module>\n"
    "[rank2]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:93, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.29.3\n[rank2]: ncclUnhandledCudaError: Call to CUDA function failed.\n"
    "[rank2]: Last error:\n[rank2]: Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401\n"
)  # fmt: skip
LOST = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:93, unhandled system error, NCCL version 2.21.5\n"
WAITS = "".join(
    f"[rank{rank}]:[E1122 10:20:30.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=99999, NumelOut=99999, Timeout(ms)=600000) ran for 600033 ms\n"
    for rank in (0, 1)
)  # fmt: skip


def test_every_bug_has_a_source_and_is_told_by_a_version_or_a_text() -> None:
    bugs = known_bugs()
    assert len(bugs) >= 30
    for bug in bugs:
        assert bug.fix and ("#" in bug.source or "release notes" in bug.source), bug
        assert bug.text or bug.before, bug
        assert not bug.before or bug.since < bug.before, bug


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("1 0x0000000000122927 rasMsgHandlePeersUpdate()  /opt/nccl/lib/libnccl.so", "NVIDIA/nccl#1996"),
        ("    waitWorkFifoAvailable (enqueue.cc:745)", "NVIDIA/nccl#1251"),
        ("    ncclLaunchKernel (enqueue.cc:968)", ""),
    ],
)
def test_functions_of_nccl_that_only_a_bug_stops_in(line: str, source: str) -> None:
    known_bug = bug_in(line)
    assert (known_bug.source.partition(";")[0] if known_bug else "") == source


def test_its_own_text_confirms_it(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(NVLS)
    (root,) = diagnose(tmp_path).root_causes
    assert root.cause == "env.known_bug"
    assert "NCCL_NVLS_ENABLE=0" in text_of(root).remedies[0].change


BIND = "n:8:11 [3] transport/nvls.cc:157 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401\n"
CUDA = "n:8:11 [3] transport/nvls.cc:240 NCCL WARN Cuda failure 401 'the operation cannot be performed'\n"
SEGMENT = "n:7:9 [0] misc/shmutils.cc:87 NCCL WARN Error: failed attaching to shared memory segment /dev/shm/nccl-0x12 size 9637888\n"
STEPS = "".join(f"[{n}/900] acc 0.5\n" for n in range(40))


@pytest.mark.parametrize("warning", [BIND, CUDA, SEGMENT])
@pytest.mark.parametrize(
    ("after", "is_bug"),
    [
        ("", False),
        (STEPS, False),
        (STEPS + "Training complete\n", False),
        ('Traceback (most recent call last):\n  File "t.py", line 3, in f\nValueError: bad batch\n', False),
        (LOST, True),
        (WAITS, True),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n", True),
    ],
)
def test_a_warning_is_the_cause_only_where_communication_ended(
    tmp_path: Path, warning: str, after: str, is_bug: bool
) -> None:
    (tmp_path / "train.log").write_text(warning + after)
    report = diagnose(tmp_path)
    assert any(root.cause == "env.known_bug" for root in report.root_causes) == is_bug
    (bug,) = (finding.finding for finding in report.findings if finding.finding.cause == "env.known_bug")
    assert is_bug or (bug.status == "undecided" and "A known bug may be the cause" in text_of(bug).summary)


@pytest.mark.parametrize(("version", "named"), [("2.29.2", True), ("2.29.3", False)])
def test_a_version_alone_is_named_and_confirms_nothing(tmp_path: Path, version: str, named: bool) -> None:
    (tmp_path / "train.log").write_text(f"NCCL version {version}+cuda12.9\n" + WAITS)
    report = diagnose(tmp_path)
    assert not report.root_causes
    assert any("pytorch/pytorch#174338" in note for note in report.notes) == named


def test_a_fault_that_shows_otherwise_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("NCCL version 2.29.2+cuda12.9\nCUDA error: invalid argument\n")
    assert not any("known bug" in note for note in diagnose(tmp_path).notes)


@pytest.mark.parametrize(("name", "expected"), [("nccl- ", True), ("nccl-\u040c ", True), ("nccl-glnlGK ", False)])
def test_a_segment_of_shared_memory_that_nobody_made(tmp_path: Path, name: str, expected: bool) -> None:
    line = f"n:7:7 [7] misc/shmutils.cc:132 NCCL WARN Error while attaching to shared memory segment /dev/shm/{name}"
    (tmp_path / "job.log").write_text(f"{line}(size 0), error: No such file or directory (2)\n{LOST}")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == (["env.known_bug"] if expected else [])


def test_versions_that_nothing_names_are_no_note(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("slurmstepd: error: *** JOB 41 ON node7 CANCELLED AT 2026-03-01T10:00:00 ***\n")
    assert not any("names a version" in note for note in diagnose(tmp_path).notes)


def test_the_last_line_of_a_side_thread_ends_no_process(tmp_path: Path) -> None:
    lines = "step 1 loss 2.0\nstep 2 loss 1.9\nException in thread Poller:\nBrokenPipeError: [Errno 32] Broken pipe\n"
    (tmp_path / "job.log").write_text(lines)
    assert not diagnose(tmp_path).root_causes


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("GPU 0: NVIDIA GeForce RTX 5090 (UUID: GPU-3b1c)", True),
        ("|   0  NVIDIA GeForce RTX 5090        On  |   00000000:01:00.0 Off |                  N/A |", True),
        ("GPU models and configuration: GPU 0: NVIDIA GeForce RTX 5090", True),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-3b1c)", False),
        ("the card is none that a tool lists", False),
    ],
)
def test_a_bug_of_one_gpu_is_only_told_where_that_gpu_is(tmp_path: Path, line: str, named: bool) -> None:
    (tmp_path / "train.log").write_text(f"{line}\nNCCL version 2.25.1+cuda12.8\n")
    case = seen(explain(gather(tmp_path, Limits())))
    gpus = gpu_names(recorded(gather(tmp_path, Limits())).hardware)
    bugs = {bug.what for bug in Installed(case.versions, "", gpus).possible({})}
    assert ("collectives fail on GeForce RTX 5090" in bugs) == named
