"""The steps in CONTRIBUTING.md, followed in a copy of the repository's packages, lead to something that works."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TOY_READER = '''
"""Lines of the toy watcher: one fact a file."""

from diagnostics.evidence.limits import whole
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.reader import Contents, Reader, Source


def recognise(head: bytes) -> bool:
    """Whether a file that begins so was written by the toy watcher."""
    return head.startswith(b"toy watcher v1")


def read(source: Source) -> Contents:
    """Return the one fact in the file."""
    lines = whole(source.path, source.limits).decode().splitlines()
    if len(lines) < 2:
        raise ValueError("it ends after its first line")
    return Contents(source.file, facts=[LogFact("toy", source.owner.rank, source.file, 2, lines[1])])


READER = Reader(
    kind="toy", title="toy files", recognise=recognise, open=read, facts=("toy",), per_rank="toy file"
)
'''
TOY_TEST = """
HONEST = b"toy watcher v1\\nall is well\\n"
DAMAGED = b"toy watcher v1\\n"
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages as they are checked in, to be changed."""
    for package in ("diagnostics", "dtk"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return tmp_path


def dtk(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`dtk` out of the copy."""
    return subprocess.run(
        [sys.executable, "-m", "dtk.commands.main", *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_reader_is_one_file_and_its_test(copy: Path) -> None:
    (copy / "diagnostics/evidence/readers/toy.py").write_text(TOY_READER, encoding="utf-8")
    files = copy / "left"
    files.mkdir()
    namespace: dict[str, bytes] = {}
    exec(TOY_TEST, namespace)
    (files / "rank_0.toy").write_bytes(namespace["HONEST"])
    (files / "rank_1.toy").write_bytes(namespace["HONEST"])
    (files / "rank_3.toy").write_bytes(namespace["DAMAGED"])
    ended = dtk(copy, "diagnose", str(files), "--json")
    assert ended.returncode in (0, 1), ended.stderr
    (line,) = [one for one in json.loads(ended.stdout)["coverage"] if one["kind"] == "toy"]
    assert line["ranks_present"] == 2
    assert line["problems"] == ["rank_3.toy: it ends after its first line"]
    nothing = copy / "nothing"
    nothing.mkdir()
    assert "toy files" in dtk(copy, "diagnose", str(nothing)).stderr
