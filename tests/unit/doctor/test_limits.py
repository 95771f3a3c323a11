"""What the system grants a job: every bad case really made, in a child process or on a tiny file system."""

import os
import resource
from pathlib import Path

import pytest

from dtk.doctor import limits
from dtk.doctor.model import Scope
from tests.unit.doctor.machines import ask, lower, tiny

SCOPE = Scope(Path())


def test_shared_memory_that_is_large_enough(tmp_path):
    with tiny(tmp_path / "shm", "size=2g") as folder:
        result = limits.shm(SCOPE, folder)
    assert (result.status, result.summary) == ("ok", "2 GiB free of 2 GiB")


def test_dockers_64_mib_are_a_warning(tmp_path):
    with tiny(tmp_path / "shm", "size=64m") as folder:
        result = limits.shm(SCOPE, folder)
        assert list(folder.iterdir()) == [], "the trial leaves nothing"
    assert result.status == "warning"
    assert "64 MiB in total" in result.summary
    assert result.remedies[0].command == f"sudo mount -o remount,size=16g {folder}"


def test_shared_memory_that_is_too_small_or_full(tmp_path, monkeypatch):
    with tiny(tmp_path / "small", "size=8m") as folder:
        small = limits.shm(SCOPE, folder)
    assert small.status == "failure"
    assert "32 MiB cannot be taken: No space left on device" in small.summary
    monkeypatch.setattr(limits, "SHM_BYTES", 64 << 20)  # To fill a real GiB would cost the machine a real GiB.
    with tiny(tmp_path / "full", "size=80m") as folder:
        with (folder / "nccl-left").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 70 << 20)
        full = limits.shm(SCOPE, folder)
    assert full.status == "failure"
    assert full.remedies[0].command == f"ls -lS {folder} | head"


def test_no_shared_memory(tmp_path):
    result = limits.shm(SCOPE, tmp_path / "none")
    assert result.status == "failure"
    assert "sudo mount -t tmpfs" in result.remedies[0].command


@pytest.mark.parametrize(
    ("soft", "hard", "status", "command"),
    [
        (256, 65536, "failure", "ulimit -n 65536"),
        (1024, 8192, "warning", "ulimit -n 8192"),
        (1024, 1024, "warning", "nofile.conf"),
        (8192, 8192, "ok", ""),
    ],
)
def test_open_files(soft, hard, status, command):
    hard = min(hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]) if hard == 65536 else hard
    command = command.replace("65536", str(min(65536, hard)))
    result = ask("limits.files(Scope(Path()))", "limits", before=lower(resource.RLIMIT_NOFILE, soft, hard))
    assert result[0] == status
    assert result[1].startswith(f"{soft:,} open files per process")
    assert command in "".join(result[2])


def test_locked_memory_matters_for_rdma(tmp_path):
    (tmp_path / "rdma" / "mlx5_0").mkdir(parents=True)
    lock = lower(resource.RLIMIT_MEMLOCK, 65536)
    call = f"limits.memlock(Scope(Path()), Path({str(tmp_path / 'rdma')!r}))"
    status, text, commands = ask(call, "limits", before=lock)
    assert status == "failure"
    assert text.startswith("64 KiB of locked memory: RDMA (mlx5_0)")
    assert "memlock.conf" in commands[0]
    status, text, commands = ask(
        f"limits.memlock(Scope(Path()), Path({str(tmp_path / 'none')!r}))", "limits", before=lock
    )
    assert (status, commands) == ("ok", [])
    assert "no RDMA device" in text


def test_few_processes(tmp_path):
    status, text, commands = ask(
        f"limits.processes(Scope(Path()), Path({str(tmp_path / 'none')!r}))",
        "limits",
        before=lower(resource.RLIMIT_NPROC, 700),
    )
    assert (status, commands) == ("warning", ["ulimit -u 8192"])
    assert text.startswith("700 processes and threads (ulimit -u)")
    (tmp_path / "pids.max").write_text("100\n")
    result = limits.processes(SCOPE, tmp_path / "pids.max")
    assert (result.status, result.remedies[0].command) == ("warning", "docker run --pids-limit=-1")


def test_little_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100000000 kB\nMemFree: 5 kB\nMemAvailable:   90000000 kB\n")
    assert limits.memory(SCOPE, meminfo, tmp_path).status == "ok"
    (tmp_path / "memory.max").write_text(f"{10 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{(10 << 30) - (100 << 20)}\n")
    result = limits.memory(SCOPE, meminfo, tmp_path)
    assert (result.status, result.summary) == ("warning", "only 100 MiB of 10 GiB host memory is available")
    assert limits.memory(SCOPE, tmp_path / "none", tmp_path).status == "not_applicable"
