"""py-spy's dumps as the only evidence: who waits in which call, and where the others are."""

import json
from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.report.diagnosis import document
from diagnostics.report.terminal import render

REDUCES = (
    ("all_reduce", "torch/distributed/distributed_c10d.py", 2810),
    ("wrapper", "torch/distributed/c10d_logger.py", 81),
)
USERS = (("main", "train.py", 44), ("<module>", "train.py", 55))
ELSEWHERE = (("read_shard", "train.py", 21), ("main", "train.py", 40), ("<module>", "train.py", 55))
BARRIER = (
    ("barrier", "torch/distributed/distributed_c10d.py", 4100),
    ("save", "train.py", 61),
    ("<module>", "train.py", 70),
)


def text(pid: int, frames: tuple[tuple[str, str, int], ...], command: str = "python train.py") -> str:
    """A dump as py-spy 0.4 prints it."""
    lines = "".join(f"    {name} ({file}:{line})\n" for name, file, line in frames)
    head = f'Process {pid}: {command}\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {pid} (idle): "MainThread"\n'
    other = 'Thread 77 (idle): "Thread-1"\n    wait (threading.py:331)\n    _bootstrap (threading.py:1002)\n'
    return head + lines + other


def as_json(pid: int, frames: tuple[tuple[str, str, int], ...]) -> str:
    more = {"module": None, "short_filename": None, "locals": None, "is_entry": False, "is_shim_entry": False}
    path = [{"name": name, "filename": f"/job/{file}", "line": line, **more} for name, file, line in frames]
    thread = {"pid": pid, "thread_id": pid, "thread_name": "MainThread", "os_thread_id": pid, "active": False}
    child = {**thread, "pid": pid + 1000, "frames": path[-1:], "owns_gil": False, "process_info": None}
    return json.dumps([{**thread, "owns_gil": False, "frames": path, "process_info": None}, child], indent=2)


def screen(folder: Path) -> str:
    report = diagnose(folder)
    assert not report.root_causes
    return render(document(report, brief=True), columns=200, colour=False)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("dump_{pid}.txt", "python train.py --local_rank {rank}"),
        ("dump_{pid}.txt", "/usr/bin/python -u train.py --local-rank={rank} --lr 3"),
        ("dump_{pid}.txt", "python train.py --rank {rank}"),
        ("pyspy_rank{rank}.txt", "python train.py"),
        ("{rank}.txt", "python train.py"),
        ("py-spy.{rank}.dump", "python train.py"),
    ],
)
def test_ranks_are_those_of_the_command_line_or_of_the_names(tmp_path: Path, name: str, command: str) -> None:
    for rank in range(4):
        file = tmp_path / name.format(rank=rank, pid=4000 + rank)
        frames = ELSEWHERE if rank == 2 else REDUCES + USERS
        file.write_text(text(4000 + rank, frames, command.format(rank=rank)))
    shown = screen(tmp_path)
    assert "ranks 0, 1 and 3 wait in all_reduce at train.py:44; no cause is confirmed" in shown
    assert "Rank 2: in user code or a C call from it at train.py:21" in shown and "dtk attach" in shown
    assert "logged nothing" not in shown and "nothing relevant" not in shown


def test_json_holds_the_stacks_of_one_process_and_its_children(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank_{rank}.json").write_text(as_json(4000 + rank, ELSEWHERE if rank == 0 else REDUCES + USERS))
    shown = screen(tmp_path)
    assert "ranks 1 and 2 wait in all_reduce at train.py:44" in shown and "Rank 0: " in shown


def test_processes_whose_ranks_nothing_names_are_told_apart(tmp_path: Path) -> None:
    dumps = [text(4000 + n, ELSEWHERE if n == 2 else REDUCES + USERS) for n in range(4)]
    (tmp_path / "all.txt").write_text("\n".join(dumps))
    shown = screen(tmp_path)
    assert "processes 4000, 4001, 4003 wait in all_reduce at train.py:44" in shown
    assert "An unidentified rank: in user code or a C call from it at train.py:21 (process 4002)" in shown


def test_local_ranks_of_two_nodes_are_no_ranks(tmp_path: Path) -> None:
    for n in range(4):
        frames = ELSEWHERE if n == 3 else REDUCES + USERS
        (tmp_path / f"node{n // 2}_{9000 + n}.txt").write_text(
            text(9000 + n, frames, f"python t.py --local_rank {n % 2}")
        )
    assert "processes 9000, 9001, 9002 wait in all_reduce" in screen(tmp_path)


def test_ranks_in_two_calls_are_told_apart(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.txt").write_text(text(70 + rank, BARRIER if rank == 0 else REDUCES + USERS))
    assert "ranks 1-3 wait in all_reduce at train.py:44, rank 0 waits in barrier at train.py:61" in screen(tmp_path)


ACCELERATE = (("wait", "subprocess.py", 1264), ("launch_command", "accelerate/commands/launch.py", 1198))
AGENT = (("_invoke_run", "torch/distributed/elastic/agent/server/api.py", 880), ("<module>", "torchrun", 8))
WORKER = (("get", "multiprocessing/queues.py", 113), ("_worker_loop", "torch/utils/data/_utils/worker.py", 257), *USERS)


def test_the_launcher_and_the_workers_of_data_loaders_are_no_ranks(tmp_path: Path) -> None:
    dumps = [text(4000 + n, ELSEWHERE if n == 2 else REDUCES + USERS) for n in range(4)]
    others = [text(3999, AGENT), text(3998, ACCELERATE), text(4100, WORKER), text(4101, WORKER)]
    (tmp_path / "all.txt").write_text("\n".join([*others, *dumps]))
    shown = screen(tmp_path)
    assert "processes 4000, 4001, 4003 wait in all_reduce" in shown and "process 4002" in shown
    assert not any(pid in shown for pid in ("3998", "3999", "4100", "4101"))


def test_a_process_in_another_call_is_suspected_without_a_rank(tmp_path: Path) -> None:
    dumps = [text(4000 + n, BARRIER if n == 2 else REDUCES + USERS) for n in range(4)]
    (tmp_path / "all.txt").write_text("\n".join(dumps))
    shown = screen(tmp_path)
    assert "processes 4000, 4001, 4003 wait in all_reduce at train.py:44, process 4002 waits in barrier" in shown
    assert "rank -" not in shown and not any(suspicion.ranks for suspicion in diagnose(tmp_path).suspicions)


@pytest.mark.parametrize("cut", [0, 40, 140])
def test_one_process_and_dumps_that_are_cut_off_show_no_wait(tmp_path: Path, cut: int) -> None:
    (tmp_path / "dump.txt").write_text(text(4000, REDUCES + USERS))
    (tmp_path / "cut.txt").write_text(text(4001, REDUCES + USERS)[:cut])
    if cut != 140:
        assert " wait" not in screen(tmp_path).partition("\n")[0]
    else:  # Its innermost frames are there, but not the user's line.
        assert "all_reduce" in screen(tmp_path)


def test_stacks_that_faulthandler_left_in_the_logs_of_ranks(tmp_path: Path) -> None:
    """`faulthandler.dump_traceback_later` prints them after a minute; one rank reads data meanwhile."""
    for rank in range(4):
        path = ELSEWHERE if rank == 2 else (*REDUCES, *USERS)
        frames = "".join(f'  File "/job/{file}", line {line} in {name}\n' for name, file, line in path)
        head = "Timeout (0:01:00)!\nThread 0x00007f0001 (most recent call first):\n"
        (tmp_path / f"rank{rank}.log").write_text(head + frames)
    report = diagnose(tmp_path)
    shown = render(document(report, brief=True), columns=None, colour=False).splitlines()
    assert report.outcome == "undecided"
    assert shown[1].rstrip() == "waits   ranks 0, 1 and 3: all_reduce at train.py:44"
    assert shown[2].startswith("others  Rank 2: in user code")
