"""A file is replaced whole, and its mode follows the umask."""

import datetime
import math
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from diagnostics.contract import files
from diagnostics.contract.artifacts import write_json
from diagnostics.contract.files import inside, open_regular, read_json, read_table, replacing
from diagnostics.evidence.limits import Limits, head, whole


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


def test_a_table_is_kept_compiled_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = tmp_path / "a.yaml"
    path.write_text("{names: [x, y], 7: .inf, none: null, day: 2026-01-02}")
    table = read_table(path)
    assert table == {"names": ["x", "y"], 7: math.inf, "none": None, "day": datetime.date(2026, 1, 2)}
    table["names"].clear()
    assert read_table(path)["names"] == ["x", "y"], "each caller has values of its own"
    (kept,) = (tmp_path / "__pycache__").iterdir()
    assert kept.name == f"a.yaml.{sys.implementation.cache_tag}.pyc"
    path.write_text("[other]")
    files._table.cache_clear()
    assert read_table(path) == ["other"]
    kept.write_bytes(b"damaged")
    files._table.cache_clear()
    assert read_table(path) == ["other"]


def test_a_folder_that_became_a_link_after_it_was_looked_at_is_not_followed(tmp_path: Path) -> None:
    evidence, outside = tmp_path / "evidence", tmp_path / "outside"
    for folder in (evidence / "logs", outside):
        folder.mkdir(parents=True)
        (folder / "rank_0.json").write_text('{"secret": 1}')
    seen = evidence / "logs" / "rank_0.json"
    reads = (read_json, head, lambda path: whole(path, Limits()), lambda path: open_regular(path, follow=False).close())
    with inside(evidence):
        for read in reads:
            read(seen)
        shutil.rmtree(evidence / "logs")
        (evidence / "logs").symlink_to(outside)
        for read in reads if Path("/proc/self/fd").exists() else ():
            with pytest.raises(OSError, match="leads out of the folder"):
                read(seen)
        open_regular(outside / "rank_0.json").close()  # What is the user's own.
    assert read_json(seen) == {"secret": 1}
