"""`dtk watch` around real scripts that know nothing of dtk: healthy ones are left as they are, others are explained."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import ROOT, environment
from tests.patience import stretched

SCRIPT = """\
import os, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
{own}

def train(rank=None, how="env://"):
    fault = sys.argv[1]
    more = {{}} if rank is None else dict(rank=rank, world_size=2)
    dist.init_process_group("gloo", init_method=how, **more)
    rank = dist.get_rank()
    value = torch.ones(8)
    for step in range(3):
        dist.all_reduce(value)
    os.write(1, b"planted at %.6f\\n" % time.time())
    if fault == "extra" and rank == 0:
        dist.all_reduce(torch.zeros(3))  # extra
    if fault == "sleep" and rank == 1:
        time.sleep(1e6)  # stuck
    if fault == "raise" and rank == 1:
        raise ValueError("bad batch")  # raised
    if fault == "forever":
        time.sleep(1e6)
    dist.barrier()
    os.write(1, b"sum %d\\n" % value.sum())
    sys.stderr.write("a word on stderr\\n")
    if fault == "again":
        dist.destroy_process_group()
        # In a store of its own: over the first one torch itself reads the addresses of the groups that are gone.
        store = dist.FileStore(__file__ + ".store", 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        dist.broadcast(value, 0)
    if fault == "late" and rank == 1:
        time.sleep(1.5)
    if fault != "late":
        dist.destroy_process_group()

if __name__ == "__main__":
    if len(sys.argv) > 2:
        mp.spawn(train, (sys.argv[2],), 2)
    else:
        train()
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
PROMPT_S = 5.0


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def script(folder: Path, own: str = "") -> Path:
    path = folder / "job.py"
    path.write_text(SCRIPT.format(own=own))
    return path


def line_of(path: Path, mark: str) -> int:
    return next(i for i, line in enumerate(path.read_text().splitlines(), 1) if line.endswith(f"# {mark}"))


def watch(folder: Path, *command: object, options: tuple[str, ...] = (), **more: str) -> "subprocess.Popen[str]":
    """Dtk from its source tree, which the script's own Python does not know of."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from dtk.commands.main import main; sys.exit(main())"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.Popen(
        [sys.executable, "-c", start, "watch", *options, "--", *map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1", **more},
    )


def finished(process: "subprocess.Popen[str]", timeout_s: float = 200) -> tuple[int, str, str]:
    try:
        out, error = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return process.returncode, out, error


def told_after_s(process: "subprocess.Popen[str]") -> tuple[int, str, float]:
    """Exit code, error output, seconds from the planted moment to the fifth line of the report."""
    lines, told_s = [], None
    for line in process.stderr:
        lines.append(line)
        if line.startswith("what "):
            told_s = told_s or time.time()
    out = process.communicate(timeout=200)[0]
    planted = [float(number) for number in re.findall(r"planted at ([\d.]+)", out)]
    assert planted, out + "".join(lines)
    assert told_s, out + "".join(lines)
    return process.returncode, "".join(lines), told_s - max(planted)


def left_running(path: Path) -> list[str]:
    """Command lines that name the script."""
    texts = []
    for entry in Path("/proc").iterdir():
        try:
            arguments = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
        except OSError:
            continue
        if str(path).encode() in arguments:
            texts.append(arguments.replace(b"\0", b" ").decode())
    return texts


@pytest.mark.parametrize("fault", ["none", "again", "late"])
def test_a_healthy_job_is_left_as_it_is(fault, tmp_path):
    path = script(tmp_path)
    code, out, error = finished(watch(tmp_path, *TORCHRUN, path, fault))
    assert code == 0, error
    assert re.sub(r"planted at [\d.]+", "planted", out).split("\n") == ["planted"] * 2 + ["sum 64"] * 2 + [""]
    ours = [line for line in error.splitlines() if line.startswith("dtk")]
    assert [line.split(" in ")[0] for line in ours] == ["dtk watch: records"]
    assert [line for line in error.splitlines() if line not in ours] == ["a word on stderr"] * 2
    assert not left_running(path)
    command = [sys.executable, "-m", "dtk", "diagnose", ours[0].rpartition(" in ")[2]]
    text = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (text.returncode, text.stdout.partition(":")[0]) == (0, "HEALTHY"), text.stdout


@pytest.mark.parametrize("how", [pytest.param("tcp", marks=pytest.mark.extended), "file"])
def test_a_script_that_spawns_its_ranks(how, tmp_path, free_port):
    """Rank 0 holds the store and leaves first: nobody is to stumble over that."""
    path = script(tmp_path)
    where = f"tcp://127.0.0.1:{free_port}" if how == "tcp" else f"file://{tmp_path}/store"
    code, out, error = finished(watch(tmp_path, sys.executable, path, "late", where))
    assert (code, out.count("sum 64")) == (0, 2), error
    assert error.splitlines()[1:] == ["a word on stderr"] * 2
    code, _, error = finished(watch(tmp_path, sys.executable, path, "extra", where))
    assert code == 1
    assert f"rank 0 called all_reduce [3] float32 SUM at job.py:{line_of(path, 'extra')}" in error
    assert not left_running(path)


def test_an_extra_collective_is_explained_within_seconds(tmp_path):
    path = script(tmp_path)
    code, error, took_s = told_after_s(watch(tmp_path, *TORCHRUN, path, "extra"))
    assert code == 1, error
    report = error.partition("HUNG: only some ranks issued a collective [hang.conditional_collective")[2]
    assert f"job.py:{line_of(path, 'extra')}" in report
    assert f"rank 0 called all_reduce [3] float32 SUM at job.py:{line_of(path, 'extra')} in train" in error
    assert took_s <= stretched(PROMPT_S), error
    assert not left_running(path)
    (folder,) = (tmp_path / "dtk-watch").iterdir()
    kept = {file.parent.name for file in folder.rglob("*") if "rank_0000" in file.name}
    assert {"flight", "stacks", "heartbeat"} <= kept
    assert (folder / "flight" / "rank_00000.pickle").stat().st_size > 0


@pytest.mark.extended
def test_a_rank_that_sleeps_for_ever_is_blamed(tmp_path):
    path = script(tmp_path)
    process = watch(tmp_path, *TORCHRUN, path, "sleep", options=("--stall-timeout-s", "4"))
    code, error, took_s = told_after_s(process)
    assert code == 1, error
    assert "[hang.host_stall" in error, error
    assert "blame   rank 1 (victims: rank 0)" in error
    assert f"job.py:{line_of(path, 'stuck')} in train (rank 1)" in error
    assert 4 <= took_s <= 4 + stretched(PROMPT_S), error
    assert not left_running(path)


def test_a_rank_that_raises_is_blamed_below_its_own_traceback(tmp_path):
    path = script(tmp_path)
    code, _, error = finished(watch(tmp_path, *TORCHRUN, path, "raise"))
    assert code == 1
    job, _, report = error.partition("CRASHED: a rank raised an exception [hang.rank_raised")
    assert "ValueError: bad batch" in job
    assert "blame   rank 1" in report
    assert f"job.py:{line_of(path, 'raised')} in train (rank 1), ValueError: bad batch" in report


def test_signals_reach_the_command_and_nothing_is_explained(tmp_path):
    path = script(tmp_path)
    process = watch(tmp_path, *TORCHRUN, path, "forever")
    assert process.stdout.readline().startswith("planted")
    process.send_signal(signal.SIGTERM)
    code, _, error = finished(process, timeout_s=200)
    assert code not in (0, 75)
    assert "SIGTERM" in error
    assert "[hang." not in error
    assert not left_running(path)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.extended), signal.SIGTERM])
def test_a_job_that_hung_is_explained_when_it_is_stopped(number, tmp_path):
    path = script(tmp_path)
    process = watch(tmp_path, *TORCHRUN, path, "sleep")
    assert process.stdout.readline().startswith("planted")
    time.sleep(12)  # Longer than a call may be open in a job that is under way.
    process.send_signal(number)
    code, _, error = finished(process, timeout_s=200)
    assert code != 0
    report = error.partition("HUNG: a rank never reached a collective [hang.host_stall")[2]
    assert "blame   rank 1 (victims: rank 0)" in report, error
    assert f"job.py:{line_of(path, 'stuck')} in train (rank 1)" in report
    assert "shows where the ranks were" in report
    assert not left_running(path)


EARLY = """\
import os, time, torch.distributed as dist
if os.environ["RANK"] == "1":
    {what}  # early
dist.init_process_group("gloo")
for step in range(4):
    other = step == 2 and os.environ["RANK"] == "1"
    dist.all_reduce(__import__("torch").ones(4), op=dist.ReduceOp.MAX if other else dist.ReduceOp.SUM)
"""


def test_a_rank_that_never_comes_to_its_group_is_blamed(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(EARLY.format(what="time.sleep(1e6)"))
    code, _, error = finished(watch(tmp_path, *TORCHRUN, path, options=("--start-timeout-s", "11")))
    assert code == 1, error
    report = error.partition("HUNG: start-up never completed [hang.rendezvous")[2]
    assert "blame   rank 1 (victims: rank 0)" in report, error
    assert f"job.py:{line_of(path, 'early')} in <module> (rank 1)" in report
    assert not left_running(path)


@pytest.mark.extended
def test_a_rank_that_is_late_is_left_alone_and_the_last_calls_are_compared(tmp_path):
    """It computes for longer than the limit; then the job ends sooner than the live watch can look."""
    path = tmp_path / "job.py"
    path.write_text(EARLY.format(what="end = time.time() + 8; [0 for _ in iter(lambda: time.time() < end, False)]"))
    code, _, error = finished(watch(tmp_path, *TORCHRUN, path, options=("--start-timeout-s", "3")))
    assert code == 0, error
    assert "hang.rendezvous" not in error
    assert "rank 1 called all_reduce [4] float32 MAX" in error
    assert "DIVERGED: " in error


@pytest.mark.extended
def test_a_rank_that_raises_before_its_group_is_blamed(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(EARLY.format(what="import not_there"))
    code, _, error = finished(watch(tmp_path, *TORCHRUN, path))
    assert code == 1, error
    report = error.partition("CRASHED: a rank raised an exception [hang.rank_raised")[2]
    assert "blame   rank 1 (victims: rank 0)" in report, error
    assert f"job.py:{line_of(path, 'early')} in <module> (rank 1), ModuleNotFoundError" in report


def test_the_users_environment_and_packages_win(tmp_path):
    """A package named like one of dtk's, a sitecustomize, and a variable of the flight recorder."""
    for name, text in (("diagnostics/__init__.py", "MINE = 1"), ("site/sitecustomize.py", "print('hello')")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    path = script(tmp_path, own="import diagnostics; diagnostics.MINE")
    more = {"PYTHONPATH": str(tmp_path / "site"), "TORCH_FR_BUFFER_SIZE": "77"}
    code, out, error = finished(watch(tmp_path, *TORCHRUN, path, "none", **more))
    assert code == 0, error
    assert out.count("hello") >= 3
    assert "dtk watch: your TORCH_FR_BUFFER_SIZE=77 is kept" in error
    assert "not watched" not in error


def test_other_commands_pass_through(tmp_path):
    plain = (
        "import sys, os; print(sys.stdin.read(), os.environ['X'], [m for m in sys.modules if 'dtk' in m]); sys.exit(7)"
    )
    process = watch(tmp_path, sys.executable, "-c", plain, X="y")
    out, error = process.communicate("input", timeout=200)
    assert (process.returncode, out) == (7, "input y []\n")
    assert "before any process group was created" in error
    assert finished(watch(tmp_path, "sh", "-c", "kill -9 $$"))[0] == 128 + 9


@pytest.mark.parametrize(
    ("options", "command", "word"),
    [
        ((), (), "no command is given"),
        ((), ("no-such-program", "x"), 'there is no command "no-such-program"'),
        ((), ("job.py",), "dtk watch -- python job.py"),
        ((), ("dtk", "run", "strategy=ddp"), "dtk run has its own watch"),
        (("--stall-timeout-s", "0"), ("true",), "not a number above 0"),
        (("--folder", "job.py/x"), ("true",), "cannot make"),
        (("--folder", "used"), ("true",), "used already holds the records of a job"),
    ],
)
def test_what_cannot_be_run_is_one_line(options, command, word, tmp_path):
    script(tmp_path)
    (tmp_path / "used" / "flight").mkdir(parents=True)
    code, out, error = finished(watch(tmp_path, *command, options=options))
    assert (code, out) == (2, "")
    assert error.startswith("dtk: ")
    assert error.count("\n") == 1
    assert word in error
