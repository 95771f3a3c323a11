"""What is written about the ranks of a job, read again as evidence."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers import process as process_reader
from dtk.attach import collect, stacks
from dtk.attach.processes import Job, RankProcess

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "SETTLE_S", 0.0)
    monkeypatch.setattr(collect, "FLIGHT_S", 0.5)
    monkeypatch.setattr(collect, "_devices", lambda folder, rank: [])
    monkeypatch.setattr(stacks, "spy", lambda: None)


@pytest.fixture
def waiting() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.wait()


def job(pid: int, rank: int = 0, world_size: int = 2, **environment: str) -> Job:
    return {rank: RankProcess(pid, rank, world_size, ("job",), "python train.py", environment)}


def look(ranks: Job, folder: Path, rounds: int = 2) -> tuple[list[str], list[str]]:
    said: list[str] = []
    return collect.collect(ranks, folder, rounds, 0.0, "python", said.append), said


def record(folder: Path, rank: int) -> process_reader.Contents:
    return process_reader.read(folder / "process" / f"rank_{rank:05d}.json", "f", Limits())


def test_each_round_leaves_two_moments(tmp_path: Path, waiting: int) -> None:
    lacking, said = look(job(waiting), tmp_path, rounds=3)
    assert said == ["round 1 of 3", "round 2 of 3", "round 3 of 3"]
    (fact,) = record(tmp_path, 0).facts
    assert len(fact.fields["looks"]) == 3
    assert fact.fields["last"].state in ("S", "R", "D")
    assert lacking == ["no stacks, only what /proc shows: py-spy is not installed. To install it: pip install py-spy"]


def test_stacks_and_numbers_of_each_round(tmp_path: Path, waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([stacks.Dump("Thread 7 (idle)\n    step (a.py:3)\n", {"op": "recv"}), stacks.Dump("", problem="torn")])
    monkeypatch.setattr(stacks, "spy", lambda: "py-spy")
    monkeypatch.setattr(stacks, "dump", lambda program, pid, manner: next(looks))
    lacking, _ = look(job(waiting), tmp_path)
    text = (tmp_path / "stacks" / "rank_00000.txt").read_text()
    assert text.count("# stacks at ") == 1
    assert record(tmp_path, 0).facts[0].fields["call"] == {"op": "recv"}
    assert lacking == [], "one of the rounds had stacks"


def test_ranks_without_stacks_say_why(tmp_path: Path, waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "spy", lambda: "py-spy")
    monkeypatch.setattr(stacks, "dump", lambda program, pid, manner: stacks.Dump("", problem="No such process"))
    lacking, _ = look(job(waiting, rank=3, world_size=4), tmp_path)
    assert lacking == ["no stacks of rank 3: No such process"]


def test_where_native_stacks_fail_those_of_python_are_taken(
    tmp_path: Path, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    manners: list[str] = []

    def dump(program: str, pid: int, manner: str) -> stacks.Dump:
        manners.append(manner)
        return stacks.Dump("" if manner == "native" else "Thread 7 (idle)\n")

    monkeypatch.setattr(stacks, "spy", lambda: "py-spy")
    monkeypatch.setattr(stacks, "dump", dump)
    collect.collect(job(waiting), tmp_path, 2, 0.0, "native", lambda text: None)
    assert manners == ["python", "native", "python"], "C's frames in the last round only"


def test_a_rank_that_is_missing_beside_one_that_lives_has_ended_well(tmp_path: Path, waiting: int) -> None:
    """torch's agent ends all ranks of a host as soon as one fails."""
    place = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    lacking, _ = look(job(waiting, **place, TORCHELASTIC_RUN_ID="x"), tmp_path)
    assert "no process of rank 1 is left on this host" in lacking
    (error,) = record(tmp_path, 1).errors
    assert (error.rank, error.exit_code) == (1, 0)
    look(job(waiting, **place), tmp_path)
    assert record(tmp_path, 1).errors == [], "another launcher may leave the others alone"


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(7)"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    look(job(process.pid), tmp_path)
    assert [(error.rank, error.exit_code) for error in record(tmp_path, 0).errors] == [(0, 7)]
    process.wait()
    look(job(process.pid), tmp_path)
    assert record(tmp_path, 0).facts[0].fields["last"].state == ""


@pytest.mark.parametrize("answers", [True, False])
def test_the_flight_recorder_is_asked_through_the_jobs_own_pipe(tmp_path: Path, waiting: int, answers: bool) -> None:
    stem, dump = tmp_path / "debug_", tmp_path / "trace_"
    pipe = Path(f"{stem}0.pipe")
    os.mkfifo(pipe)

    def recorder() -> None:
        with pipe.open("rb") as file:
            if file.read(1) == b"1" and answers:
                Path(f"{dump}0").write_bytes(b"dump")

    heard = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # The job holds its end open.
    thread = threading.Thread(target=recorder, daemon=True)
    thread.start()
    names = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(stem), "TORCH_FR_DUMP_TEMP_FILE": str(dump)}
    folder = tmp_path / "out"
    folder.mkdir()
    lacking, _ = look(job(waiting, **names), folder, 1)
    thread.join(5)
    os.close(heard)
    written = folder / "flight" / "rank_00000.pickle"
    assert (written.read_bytes() if written.exists() else None) == (b"dump" if answers else None)
    assert any("wrote no dump within" in line for line in lacking) is not answers


def test_what_is_not_the_jobs_own_is_neither_asked_nor_copied(tmp_path: Path, waiting: int) -> None:
    stem, dump = tmp_path / "debug_", tmp_path / "trace_"
    os.mkfifo(f"{stem}0.pipe")
    Path(f"{stem}1.pipe").symlink_to(f"{stem}0.pipe")
    heard = os.open(f"{stem}0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "secret").write_text("of root")
    Path(f"{dump}0").symlink_to(tmp_path / "secret")
    names = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(stem), "TORCH_FR_DUMP_TEMP_FILE": str(dump)}
    (tmp_path / "out").mkdir()
    look(job(waiting, **names) | job(waiting, 1, **names), tmp_path / "out", 1)
    assert os.read(heard, 9) == b"1" and not (tmp_path / "out" / "flight").exists()
    os.close(heard)
