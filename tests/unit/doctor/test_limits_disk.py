"""The disk of the runs folder: full, read-only, slow, of somebody else."""

import os
import re
import subprocess
import sys
import time

import pytest

from dtk.doctor import limits
from dtk.doctor.model import Scope
from tests.unit.doctor import shim
from tests.unit.doctor.machines import ROOT, ask, tiny


def test_a_disk_with_room(tmp_path):
    result = limits.space(Scope(tmp_path / "runs" / "not" / "yet"))
    assert str(tmp_path) in result.summary or result.status != "ok"
    assert result.measures["folder"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path):
    with tiny(tmp_path / "disk", "size=1m") as folder:
        (folder / "data").write_bytes(bytes(1 << 20))
        result = limits.space(Scope(folder))
        flush = limits.fsync(Scope(folder))
    assert result.status == "failure"
    assert result.summary == f"{folder} cannot be written: No space left on device (0 bytes free)"
    assert result.measures["filesystem"] == "tmpfs"
    assert flush.status == "not_applicable"


def test_a_disk_that_is_nearly_full_or_out_of_files(tmp_path):
    with tiny(tmp_path / "small", "size=2g") as folder:
        small = limits.space(Scope(folder))
    assert small.status == "warning"
    assert "2 GiB free of 2 GiB" in small.summary
    with tiny(tmp_path / "files", "size=1g,nr_inodes=50") as folder:
        files = limits.space(Scope(folder))
    assert any("more files can be created" in text for text in (files.summary, *files.details))


def test_a_read_only_disk(tmp_path):
    with tiny(tmp_path / "disk", "size=8m,ro") as folder:
        result = limits.space(Scope(folder))
    assert result.status == "failure"
    assert "Read-only file system" in result.summary


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_of_somebody_else(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom dtk.doctor import limits\nfrom dtk.doctor.model import Scope\n"
        "os.setgid(65534)\nos.setuid(65534)\nprint(limits.trial(Path(sys.argv[1]), limits.BLOCK_BYTES))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, closed],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "Permission denied", done.stderr


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "runs").write_text("")
    result = limits.space(Scope(tmp_path / "runs"))
    assert result.status == "failure"
    assert "is a file" in result.summary
    assert limits.fsync(Scope(tmp_path / "runs")).status == "not_applicable"


def test_a_disk_that_flushes_slowly(tmp_path):
    library = shim.build(tmp_path, "slow", shim.SLOW_FSYNC)
    call = f"limits.fsync(Scope(Path({str(tmp_path)!r})))"
    began = time.monotonic()
    status, text, commands = ask(call, "limits", LD_PRELOAD=str(library))
    assert time.monotonic() - began > 0.9, "the shim was there"
    assert status == "warning"
    slow = re.match(r"slow: fsync of 1 MiB takes (\d+)\.\d ms", text)
    assert slow and int(slow[1]) >= 150, text
    assert "runs_folder=" in commands[0]
