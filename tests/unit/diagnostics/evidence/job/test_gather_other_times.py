"""Lines of a kernel's log that are dated long before or after the job decide nothing; other ones do as before."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence

JOB = (
    "2031-03-10 06:00:00,120 trainer INFO epoch 0 loss 3.2\n"
    "2031-03-12 18:00:00,120 trainer INFO epoch 1 loss 3.1\n"
    "[rank2]: Traceback (most recent call last):\n"
    '[rank2]:   File "/src/fit.py", line 31, in <module>\n'
    "[rank2]:     fit()\n"
    "[rank2]: TypeError: unhashable type: 'list'\n"
)
LOST = "NVRM: Xid (PCI:0000:1a:00): 79, pid=77, name=fit, GPU has fallen off the bus."
KILLED = "Out of memory: Killed process 5150 (python3) total-vm:9kB, anon-rss:8kB"
GPU_FAULT = "hardware.gpu_fault"


def job(folder: Path, kernel: str, log: str = JOB) -> Evidence:
    (folder / "fit.log").write_text(log)
    (folder / "dmesg.log").write_text(kernel + "\n")
    return gather(folder, Limits())


def of_kernel(evidence: Evidence) -> list[str]:
    return [fact.text for fact in evidence.facts if fact.kind in ("xid", "kernel_oom")]


@pytest.mark.parametrize(
    ("stamp", "other"),
    [
        ("[Sun Mar  9 17:30:00 2031]", True),
        ("2031-03-01T06:00:00,123456+01:00", True),
        ("2031-03-13T05:30:00Z", False),
        ("2031-03-13T06:30:00Z", True),
        ("[Thu Mar 13 12:00:00 2031]", True),
        ("[Sun Mar  9 18:30:00 2031]", False),  # The zone may be another one.
        ("2031-03-11T02:00:00,123456+0000", False),
        ("[Thu Mar 13 05:00:00 2031]", False),
        ("[12345.678]", False),
        ("Mar  8 03:00:00 node1 kernel:", True),  # Of the year of the job.
        ("Mar 11 03:00:00 node1 kernel:", False),
        ("[Sun Mar 99 17:30:00 2031]", False),
    ],
)
@pytest.mark.parametrize("line", [LOST, KILLED])
def test_a_dated_line_counts_only_within_the_time_of_the_job(
    tmp_path: Path, stamp: str, other: bool, line: str
) -> None:
    evidence = job(tmp_path, f"{stamp} {line}")
    assert of_kernel(evidence) == ([] if other else [f"{stamp} {line}"])
    assert len(evidence.problems) == other and {problem.about for problem in evidence.problems} <= {"before", "after"}
    assert not other or line in evidence.problems[0].what


@pytest.mark.parametrize(
    "log",
    [
        JOB.replace("2031-", "31-"),  # No line of the job tells its time.
        JOB.split("\n", 1)[1],  # A single one may be that of the begin or of the end.
    ],
)
@pytest.mark.parametrize("stamp", ["[Sat Mar  1 17:30:00 2031]", "[Sun Mar 30 17:30:00 2031]"])
def test_a_job_whose_times_are_not_known_keeps_every_line(tmp_path: Path, log: str, stamp: str) -> None:
    assert of_kernel(job(tmp_path, f"{stamp} {LOST}", log))


def test_the_fault_of_the_job_is_kept_beside_the_same_one_of_another_day(tmp_path: Path) -> None:
    during = f"[Wed Mar 12 18:00:00 2031] {LOST}"
    assert of_kernel(job(tmp_path, f"[Sat Mar  1 17:30:00 2031] {LOST}\n{during}")) == [during]


def test_a_log_that_holds_the_kernels_lines_too_tells_no_time_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "all.log").write_text(f"[Sat Mar  1 17:30:00 2031] {LOST}\n{JOB}")
    assert of_kernel(gather(tmp_path, Limits()))


def test_in_january_a_line_without_a_year_may_be_of_the_year_before(tmp_path: Path) -> None:
    log = JOB.replace("2031-03-10", "2031-01-01").replace("2031-03-12", "2031-01-02")
    assert not of_kernel(job(tmp_path, f"Dec 20 03:00:00 node1 kernel: {LOST}", log))
    assert of_kernel(job(tmp_path, f"Dec 31 22:00:00 node1 kernel: {LOST}", log))


def stepping(hours: float, every_s: int = 60) -> str:
    """A log of steps over so many hours from 06:00 on, then an exception."""
    start = datetime(2031, 3, 10, 6)
    rows = ((start + timedelta(seconds=every_s * n), n) for n in range(int(hours * 3600 / every_s)))
    lines = [f"{at:%Y-%m-%d %H:%M:%S},120 INFO fit: step {n} loss 2.{n % 10}" for at, n in rows]
    return "\n".join([*lines, *JOB.splitlines()[2:]]) + "\n"


@pytest.mark.parametrize(
    ("stamp", "kept"), [("[Sat Mar  1 17:30:00 2031]", False), ("[Mon Mar 10 07:10:00 2031]", True)]
)
def test_printed_steps_date_a_log_that_holds_the_kernels_lines_too(tmp_path: Path, stamp: str, kept: bool) -> None:
    (tmp_path / "all.log").write_text(f"{stamp} {LOST}\n{stepping(1)}")
    assert bool(of_kernel(gather(tmp_path, Limits()))) is kept


@pytest.mark.parametrize(
    ("at", "survived"),
    [
        ("09:20:00", True),
        ("06:50:00", True),
        ("10:45:00", False),  # 15 min before the end.
        ("11:05:00", False),
        ("08:59:30", False),  # In a zone two hours ahead it is of the end.
        ("05:20:00", False),  # Before the job.
    ],
)
@pytest.mark.parametrize("same_file", [False, True])
def test_a_fault_that_training_survived_for_long_decides_nothing(
    tmp_path: Path, at: str, survived: bool, same_file: bool
) -> None:
    line = f"[Mon Mar 10 {at} 2031] {LOST}"
    evidence = job(tmp_path, "" if same_file else line, (f"{line}\n" if same_file else "") + stepping(5))
    assert of_kernel(evidence) == ([] if survived else [line])
    assert [problem.about for problem in evidence.problems] == ["survived"] * survived


@pytest.mark.parametrize("log", [stepping(5, every_s=1800), stepping(5) + "Training complete.\n"])
def test_steps_that_are_far_apart_and_a_job_that_ended_in_order_keep_it(tmp_path: Path, log: str) -> None:
    log = log if log.endswith("list'\n") else log.replace("\n".join(JOB.splitlines()[2:]) + "\n", "")
    assert of_kernel(job(tmp_path, f"[Mon Mar 10 09:20:00 2031] {LOST}", log))


WAITING = stepping(3).partition("[rank2]")[0]
STOPPED = "2031-03-10 09:40:00,120 INFO fit: gave up\n"
LISTED = "  time      : 2031-03-10_08:59:59\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 77)\n"


@pytest.mark.parametrize(
    ("at", "more", "of_job"),
    [
        ("09:00:20", "", True),
        ("09:20:00", "", True),  # The last line of a job is not its end.
        ("08:40:00", "", True),
        ("11:00:00", "", True),  # In a zone two hours ahead it is of the end.
        ("03:29:30", "", True),  # The same, of five and a half hours.
        ("11:13:00", "", False),
        ("04:13:00", "", False),
        ("04:13:00", STOPPED, False),
        ("04:10:20", STOPPED, True),
        ("04:13:00", LISTED, True),  # It names a process of the job.
    ],
)
def test_a_fault_outside_of_the_job_s_time_is_only_suspected(tmp_path: Path, at: str, more: str, of_job: bool) -> None:
    evidence = job(tmp_path, f"[Mon Mar 10 {at} 2031] {LOST}", WAITING + more)
    assert ["apart" in fact.fields for fact in evidence.facts if fact.kind == "xid"] == [not of_job]
    report = diagnose(tmp_path)
    assert [root.cause for root in report.root_causes if root.cause.startswith("hardware")] == [GPU_FAULT] * of_job
    (fault,) = (each.finding for each in report.findings if each.finding.cause == GPU_FAULT)
    assert fault.suspected != of_job


@pytest.mark.parametrize(("at", "kinds"), [("11:13:00", ["hang.rank_killed"]), ("09:00:10", ["memory.host"])])
def test_a_process_that_was_killed_at_another_time_is_none_of_the_job(
    tmp_path: Path, at: str, kinds: list[str]
) -> None:
    killed = "srun: error: node1: task 1: Killed\n"
    job(tmp_path, f"[Mon Mar 10 {at} 2031] {KILLED}", WAITING + killed)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == kinds


FAILED = (
    "  time      : 2031-03-10_08:59:59\n  host      : node{}\n  rank      : 2 (local_rank: 0)\n"
    "  exitcode  : {} (pid: {})\n  traceback : {}\n"
)
RAISED, SIGKILL = FAILED.format(1, 1, 12, ""), FAILED.format(1, -9, 5150, "Signal 9 (SIGKILL) received by PID 5150")
CRASH = "\n".join(JOB.splitlines()[2:]) + "\n"
LOST_PEER = CRASH.partition("TypeError")[0] + (
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or network error\n"
)
OF_NCCL = "node1:5:6 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"


@pytest.mark.parametrize(
    ("host", "line", "end", "kept"),
    [
        ("node7", LOST, CRASH + RAISED, False),
        ("NODE7.lab.org", LOST, CRASH + RAISED.replace("node1", "node1.lab.org"), False),
        ("node7", LOST, OF_NCCL + CRASH, False),
        ("node7", KILLED, SIGKILL, False),  # The process ID is of another machine's process.
        ("node1", KILLED, SIGKILL, True),
        ("node1", LOST, CRASH + RAISED, True),
        ("gke-pool-9", LOST, CRASH + RAISED, True),  # The job's names are those of containers.
        ("node7", LOST, CRASH, True),  # On which host is not known.
        ("node7", LOST, SIGKILL, True),  # By a launcher, if another node failed.
        ("node7", LOST, LOST_PEER + RAISED, True),
    ],
)
def test_a_kernel_of_a_host_on_which_no_rank_failed_decides_nothing(
    tmp_path: Path, host: str, line: str, end: str, kept: bool
) -> None:
    evidence = job(tmp_path, f"Mar 10 09:00:00 {host} kernel: {line}", WAITING + end)
    assert bool(of_kernel(evidence)) is kept
    assert [problem.about for problem in evidence.problems] == ["elsewhere"] * (not kept)
