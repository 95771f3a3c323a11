"""A rank was killed by a signal that no launcher sends."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import Finding, text_of
from diagnostics.diagnose import diagnose
from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job

CAUSE = "hang.rank_killed"


def of(folder: Path, log: str) -> tuple[Finding, list[str]]:
    (folder / "slurm-1.out").write_text("step 1 loss 2.0\n" + log)
    report = diagnose(folder)
    return next(finding.finding for finding in report.findings if finding.finding.cause == CAUSE), [
        root.cause for root in report.root_causes
    ]


@pytest.mark.parametrize(
    ("line", "how", "change"),
    [
        ("srun: error: node1: task 1: Killed", "was killed by SIGKILL", "check whether the kernel's OOM killer"),
        ("srun: error: node1: task 1: Segmentation fault (core dumped)", "SIGSEGV", "debug the native code"),
        ("srun: error: node1: task 1: Bus error (core dumped)", "SIGBUS", "check df -h /dev/shm"),
    ],
)
def test_the_signal_and_what_sends_it(tmp_path: Path, line: str, how: str, change: str) -> None:
    result, roots = of(tmp_path, f"{line}\n")
    assert (result.status, result.ranks, roots) == ("confirmed", (1,), [CAUSE])
    assert how in text_of(result).summary and text_of(result).remedies[0].change.startswith(change)


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        (("task 1: Segmentation fault (core dumped)", "tasks 0,2-3: Killed"), (1,)),
        (("tasks 0,2-3: Killed", "task 1: Exited with exit code 1"), (0, 2, 3)),
    ],
)
def test_srun_kills_the_other_tasks_after_a_failure(
    tmp_path: Path, lines: tuple[str, ...], ranks: tuple[int, ...]
) -> None:
    result, roots = of(tmp_path, "".join(f"srun: error: node1: {line}\n" for line in lines))
    assert (result.status, result.ranks, roots) == ("confirmed", ranks, [CAUSE])


def test_the_kernel_s_own_line_tells_that_memory_ran_out(tmp_path: Path) -> None:
    kernel = "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB\n"
    assert of(tmp_path, f"srun: error: node1: task 1: Killed\n{kernel}")[1] == ["memory.host"]


def test_a_rank_that_left_no_dump_may_have_been_killed(tmp_path: Path) -> None:
    result = finding(tmp_path, job(STEP * 3, STEP * 3, STEP * 2), CAUSE, without=(2,))
    assert result.status == "undecided" and "rank 2" in result.missing


def test_ranks_that_exited_by_themselves_were_not_killed(tmp_path: Path) -> None:
    result, roots = of(tmp_path, "srun: error: node1: task 1: Exited with exit code 3\n")
    assert (result.status, roots) == ("ruled_out", ["hang.rank_exited"])


@pytest.mark.parametrize(
    ("how", "cause"), [("signal SIGKILL", "hang.rank_killed"), ("exit code 3", "hang.rank_exited")]
)
def test_a_process_that_spawn_started(tmp_path: Path, how: str, cause: str) -> None:
    (tmp_path / "train.log").write_text(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 4, in <module>\n    mp.spawn(main, nprocs=4)\n'
        '  File "/x/torch/multiprocessing/spawn.py", line 140, in join\n    raise ProcessExitedException(\n'
        f"torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with {how}\n"
    )
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == (cause, (2,))


def test_a_local_rank_of_an_unknown_node_is_told_as_such(tmp_path: Path) -> None:
    result, roots = of(tmp_path, "E1121 failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: /usr/bin/python\n")
    assert (result.ranks, roots) == ((), [CAUSE])
    assert text_of(result).summary == "Local rank 3 of a node was killed by SIGKILL."


@pytest.mark.parametrize(("order", "killed"), [((0, 1), True), ((1, 0), False)])
def test_a_process_that_died_raises_nothing_later(tmp_path: Path, order: tuple[int, int], killed: bool) -> None:
    lost = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:58054\n"
    _, roots = of(tmp_path, "".join(("Segmentation fault (core dumped)\n", lost)[which] for which in order))
    assert (roots == [CAUSE]) == killed, "behind its own exception, a process may still fail as it ends"


@pytest.mark.parametrize(
    ("pids", "who"),
    [
        ((70,), "A process whose log does not name its rank was"),
        ((70, 71, 72), "3 processes whose log does not name their ranks were"),
    ],
)
def test_processes_without_a_rank_are_counted(tmp_path: Path, pids: tuple[int, ...], who: str) -> None:
    line = "[n8:{0}:0:{0}] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x{0})\n"
    result, roots = of(tmp_path, "".join(map(line.format, pids)))
    assert roots == [CAUSE] and text_of(result).summary.startswith(f"{who} killed by SIGSEGV")


def test_what_faulthandler_and_the_launcher_say_of_one_crash_is_one_process(tmp_path: Path) -> None:
    own = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
    own += '  File "/job/{}.py", line 3 in f\n'
    failed = (
        "E1201 10:01:06.0 40 torch/api.py:874] failed (exitcode: -11) local_rank: {0} (pid: 41{0}) of binary: python\n"
    )
    repeated, _ = of(tmp_path, own.format("t") + failed.format(0))
    assert text_of(repeated).summary.startswith("A process whose log does not name its rank was killed by SIGSEGV")
    shell = "run.sh: line {0}: 41{0} Segmentation fault      (core dumped) python train.py\n"
    several, _ = of(tmp_path, shell.format(3) + shell.format(4) + failed.format(0))
    assert "2 processes" in text_of(several).summary
