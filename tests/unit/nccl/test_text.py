"""How presets, differences, lints and recommendations look."""

import dataclasses
from pathlib import Path

import pytest

from dtk.errors import DtkError
from dtk.nccl import text
from dtk.nccl.lint import Item, Linted
from dtk.nccl.presets import Advice, Preset, find_preset, read_presets


@pytest.fixture(scope="module")
def preset() -> Preset:
    return find_preset("tcp_ethernet")


def test_every_preset_has_a_line_and_those_that_cannot_be_read_come_last(preset: Preset) -> None:
    lines = text.listing({preset.name: preset}, {"broken": DtkError("line 3", "no YAML")}).splitlines()
    assert lines[0].split()[:3] == ["preset", "for", "sets"]
    assert lines[1].startswith("tcp_ethernet") and f" {len(preset.settings)} " in lines[1]
    assert lines[2].startswith("broken") and "cannot be used: line 3" in lines[2]


def test_a_preset_is_shown_with_every_variable_its_reason_and_the_command(preset: Preset) -> None:
    shown = text.shown(preset)
    assert shown.startswith(f"nccl=tcp_ethernet: {preset.summary}")
    for setting in preset.settings:
        assert f"{setting.name}={setting.value}" in shown
        assert " ".join(setting.why.split())[:40] in " ".join(shown.split())
    assert "nccl=tcp_ethernet" in shown.split("use", 1)[1]


def test_a_preset_whose_file_names_no_command_gets_one(preset: Preset, tmp_path: Path) -> None:
    short = tmp_path / "mine.yaml"
    short.write_text("# Mine.\n")
    assert "python -m dtk.run nccl=mine" in text.shown(dataclasses.replace(preset, name="mine", path=short))


def test_differences_are_marked_as_by_diff() -> None:
    shown = text.differences("a", "b", {"X": "1", "Y": "2", "Z": "\x1b[1m"}, {"X": "1", "Y": "3"})
    lines = shown.splitlines()
    assert lines[:2] == ["--- a", "+++ b"] and lines[-1] == " 1 the same"
    assert "-Y=2" in lines and "+Y=3" in lines and "\x1b" not in shown
    assert text.differences("a", "b", {}, {}).endswith(" neither sets anything\n")


def item(severity: str, **more: object) -> Item:
    fields = {
        "variable": "NCCL_X",
        "value": "1",
        "place": "job.sh:3",
        "message": "wrong",
        "fix": "drop it",
        "cause": "c",
    }
    return Item(severity, **{**fields, **more})  # type: ignore[arg-type]


def test_lints_name_the_place_and_the_last_line_counts_them() -> None:
    items = (item("error"), item("warning", fix_in_message=True), item("note", variable="", place="nccl.conf:2"))
    shown = text.linted(Linted(items, ("job.sh",), 3, "2.27.3", "1 node"))
    assert "NCCL_X=1 (job.sh:3): wrong" in shown and "nccl.conf:2: wrong" in shown
    assert shown.count("drop it") == 2
    assert shown.rstrip().endswith("1 error, 1 warning, 1 note in 3 variables of job.sh (NCCL 2.27.3; 1 node)")
    clean = text.linted(Linted((), ("environment",), 1, "", "2 nodes"))
    assert clean == "no problem in 1 variable of the environment (NCCL version unknown; 2 nodes)\n"
    unset = text.linted(Linted((), ("environment",), 0, "", "2 nodes"))
    assert unset == "no NCCL variable is set in the environment (NCCL version unknown; 2 nodes)\n"


def test_advice_gives_reasons_needs_and_the_command() -> None:
    advice = Advice("several nodes", "roce", ("8 cards",), ("nccl.traffic_class=NUMBER",))
    shown = text.recommended([advice], ["leave NCCL_IB_DISABLE unset"])
    for part in ("several nodes: nccl=roce", "8 cards", "nccl.traffic_class=NUMBER", "nccl=roce", "NCCL_IB_DISABLE"):
        assert part in shown


def test_the_table_of_the_docs_escapes_what_would_end_a_cell() -> None:
    presets = read_presets()
    first, *others = presets["tcp_ethernet"].settings
    piped = dataclasses.replace(first, why="eth0 | eth1")
    presets["tcp_ethernet"] = dataclasses.replace(presets["tcp_ethernet"], settings=(piped, *others))
    page = text.markdown(presets)
    assert "eth0 \\| eth1" in page
    assert page.count("\n### ") == len(presets)
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(preset.settings) for preset in presets.values())
    assert all(len(row.replace("\\|", "").split("|")) == 9 for row in rows)
