"""`dtk sweep`: which file a name means."""

from pathlib import Path

import pytest

from dtk.commands.sweep import _find
from dtk.errors import DtkError


def test_a_path_comes_before_a_name_and_a_name_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own" / "sweep" / "lr.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("method: grid\n", encoding="utf-8")
    assert _find("lr", tmp_path / "own") == own
    (tmp_path / "lr").mkdir()
    assert _find("lr", tmp_path / "own") == own
    assert _find("lr", None) == Path("lr"), "read, and said to be no file"
    (tmp_path / "lr").rmdir()
    (tmp_path / "lr").write_text("method: grid\n", encoding="utf-8")
    assert _find("lr", tmp_path / "own") == Path("lr")


def test_a_name_that_nothing_has_is_one_line(tmp_path: Path) -> None:
    own = tmp_path / "sweep" / "learning_rate.yaml"
    own.parent.mkdir()
    own.write_text("", encoding="utf-8")
    with pytest.raises(DtkError, match="did you mean learning_rate"):
        _find("learning_rat", tmp_path)
    with pytest.raises(DtkError, match=r"sweeps in conf/sweep: .*learning_rate"):
        _find("zzzz", tmp_path)
