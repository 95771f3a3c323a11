"""A file is replaced whole, and its mode follows the umask."""

import os
import stat
from pathlib import Path

import pytest

from diagnostics.contract.artifacts import write_json
from diagnostics.contract.files import replacing


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_the_mode_follows_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_json(tmp_path / "status.json", {"a": 1})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "status.json").stat().st_mode) == mode


def test_an_exception_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as aside:
        aside.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
