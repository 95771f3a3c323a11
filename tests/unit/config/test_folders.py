"""Where YAML files are looked for, and which of two with the same name counts."""

from pathlib import Path

import pytest

from dtk.config.folders import conf_folder, groups, preset_sections, search_path, source_tree
from dtk.errors import DtkError


def write(folder: Path, **files: str) -> Path:
    """Create `<group>/<option>.yaml` for each `group__option`."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_this_source_tree_has_its_own_files() -> None:
    root = source_tree()
    assert root is not None and conf_folder() == root / "conf"
    assert {"model", "strategy", "fault"} <= groups([conf_folder()]).keys()


def test_descriptions_of_machines_and_sweeps_are_no_groups() -> None:
    assert not {"hardware", "sweep"} & groups([conf_folder()]).keys()
    assert (conf_folder() / "hardware").is_dir() and (conf_folder() / "sweep").is_dir()


def test_the_users_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine", model__big="layers: 2")
    assert search_path(None) == [conf_folder()]
    assert search_path(Path("mine")) == [tmp_path / "mine", conf_folder()]


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DtkError, match="there is no such folder"):
        search_path(tmp_path / "nowhere")


def test_an_earlier_folder_hides_files_of_the_same_name(tmp_path: Path) -> None:
    own = write(tmp_path / "own", model__b="", model__a="", data__text="")
    users = write(tmp_path / "users", model__b="", tracker__mine="", **{".git__config": ""})
    merged = groups([users, own])
    assert list(merged) == ["data", "model", "tracker"], "sorted, without hidden folders"
    assert list(merged["model"]) == ["a", "b"]
    assert merged["model"]["a"].parent.parent == own and merged["model"]["b"].parent.parent == users


def test_sections_that_an_option_sets_beside_its_own(tmp_path: Path) -> None:
    several = "# @package _global_\nrecord: {level: full}\ntrain: {steps: 3}\n"
    write(tmp_path, record__full=several, model__a="layers: 1\n", fault__slow=several)
    assert preset_sections(tmp_path / "record" / "full.yaml") == ["train"]
    assert preset_sections(tmp_path / "model" / "a.yaml") == []
    assert preset_sections(tmp_path / "fault" / "slow.yaml") == [], "what it takes to see a fault stays"
    assert preset_sections(None) == []
