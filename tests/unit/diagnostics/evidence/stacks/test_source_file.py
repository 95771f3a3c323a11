"""The text of a program that a stack names: read only where it is a regular Python file of a moderate size."""

import ast
import os
from pathlib import Path

import pytest

from diagnostics.evidence.stacks.source_file import MAX_BYTES, source


def test_a_program_is_parsed_and_its_age_is_known(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("for step in range(3):\n    loss = step\n")
    os.utime(file, (1_700_000_000, 1_700_000_000))
    result = source(str(file))
    assert result is not None and result.changed_s == 1_700_000_000
    assert isinstance(result.tree.body[0], ast.For)
    assert source(str(file)) is result, "it is read once"


@pytest.mark.parametrize(
    "content", [b"def (:\n", b"x = '\x00'\n", b"(" * 100_000, "x = 'ä'\n".encode("latin-1"), b"# coding: nothing\n"]
)
def test_what_is_not_python_is_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(content)
    assert source(str(file)) is None


def test_other_names_and_other_kinds_of_files_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("x = 1\n")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    with (tmp_path / "large.py").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for name in ("train.sh", "folder.py", "pipe.py", "large.py", "absent.py", "<string>", "a\0.py"):
        assert source(str(tmp_path / name)) is None, name


def test_a_warning_of_the_program_stays_silent(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    file = tmp_path / "train.py"
    file.write_text('pattern = "\\d"\n')
    assert source(str(file)) is not None and not recwarn.list
