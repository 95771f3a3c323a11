"""The choices that `dtk run --help` shows, from the files of conf/."""

from pathlib import Path

import pytest

from dtk.config.folders import conf_folder, groups
from dtk.config.help import ALL, description, help_text
from dtk.errors import DtkError

GROUPS = groups([conf_folder()])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# What it is.\nname: a\n", "What it is."),
        ("# @package _global_\n# What it is.\n", "What it is."),
        ("name: a\n# too late\n", ""),
        ("", ""),
        ("#\n# not the first\n", ""),
    ],
)
def test_the_first_comment_describes_a_file(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    assert description(path) == expected


def test_every_group_is_shown_once_in_its_section() -> None:
    lines = help_text().splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("    ")]
    assert sorted(shown) == sorted(GROUPS)
    titles = [line.strip() for line in lines if line.startswith("  ") and not line.startswith("   ")]
    assert titles[:2] == ["training", "parallelism and numerics"] and "more" not in titles


def test_a_long_list_is_only_counted() -> None:
    (faults,) = (line for line in help_text().splitlines() if line.strip().startswith("fault "))
    assert f"{len(GROUPS['fault'])} options: --help fault" in faults
    (strategies,) = (line for line in help_text().splitlines() if line.strip().startswith("strategy "))
    assert strategies.split(None, 1)[1] == ", ".join(GROUPS["strategy"])


def test_a_group_is_shown_with_every_option() -> None:
    lines = help_text("strategy").splitlines()
    assert lines[0].strip() == "strategy" and len(lines) == 1 + len(GROUPS["strategy"])
    assert all(line.split(None, 1)[1] for line in lines[1:])


def test_all_shows_what_every_group_shows() -> None:
    everything = help_text(ALL)
    assert all(help_text(group) in everything for group in GROUPS)


def test_a_group_that_is_not_there_is_one_line() -> None:
    with pytest.raises(DtkError, match='there is no group "modl" - did you mean model'):
        help_text("modl")
    with pytest.raises(DtkError, match="groups: checkpoint, data"):
        help_text("zzzz")
