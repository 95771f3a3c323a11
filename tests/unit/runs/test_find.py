"""The run that was typed, or one line on why there is none to work with."""

from pathlib import Path

import pytest

from diagnostics.contract.artifacts import RunPaths, Status, write_json
from dtk.errors import DtkError
from dtk.runs.find import find, find_readable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs, of which the second is the newer one."""
    for number, name in enumerate(("20260101-a", "20260102-b")):
        started = f"2026-01-0{number + 1}T00:00:00+00:00"
        write_json(RunPaths(tmp_path / name).status, Status(state="finished", started=started))
    return tmp_path


def test_a_run_by_its_path_its_id_the_beginning_of_it_and_last(folder: Path) -> None:
    second = folder / "20260102-b"
    for name in (str(second), "20260102-b", "20260102", "last"):
        assert find(name, folder) == second


@pytest.mark.parametrize(("name", "message"), [("2026", "20260101-a"), ("x", "x"), ("", "no run"), ("..", "run")])
def test_none_or_several_is_one_line_with_a_way_on(name: str, message: str, folder: Path) -> None:
    with pytest.raises(DtkError) as caught:
        find(name, folder)
    assert message in caught.value.what and caught.value.fix.endswith("ls lists the runs")


def test_a_run_that_can_be_read(folder: Path) -> None:
    run = find_readable("last", folder)
    assert (run.id, run.state) == ("20260102-b", "finished")


@pytest.mark.parametrize(
    ("status", "what", "fix"),
    [
        ("{", "is damaged: ", "reads what is left of it"),
        ('{"schema_version": 99, "state": "finished"}', "was written by a newer dtk: ", "upgrade dtk"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_line(status: str, what: str, fix: str, folder: Path) -> None:
    (folder / "20260102-b" / "status.json").write_text(status, encoding="utf-8")
    with pytest.raises(DtkError) as caught:
        find_readable("20260102", folder)
    assert what in caught.value.what and caught.value.fix.endswith(fix)
