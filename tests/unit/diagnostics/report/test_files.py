"""The report's files beside a run: whole or not at all, and never through somebody else's link."""

import json
import os
from pathlib import Path

import pytest

from diagnostics.report.files import replace, write_beside_run
from tests.unit.diagnostics.report.samples import full


def test_three_forms_are_written_and_the_page_is_named(tmp_path: Path) -> None:
    page, problem = write_beside_run(full(), tmp_path)
    assert (Path(page), problem) == (tmp_path / "report" / "report.html", "")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["report.html", "report.json", "report.md"]
    assert 'href="../flight/rank_00001.pickle"' in (tmp_path / "report" / "report.html").read_text()
    assert json.loads((tmp_path / "report" / "report.json").read_text())["schema"] == "dtk.report/1"


def test_a_second_report_takes_the_place_of_the_first(tmp_path: Path) -> None:
    write_beside_run(full(), tmp_path)
    (tmp_path / "report" / "report.md").write_text("old")
    write_beside_run(full(), tmp_path)
    assert (tmp_path / "report" / "report.md").read_text().startswith("# ")


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report").symlink_to(tmp_path / "elsewhere")
    page, problem = write_beside_run(full(), tmp_path / "run")
    assert page == "" and "is a link" in problem and not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_that_becomes_a_link_before_it_is_written_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def swapped(folder: Path, exist_ok: bool = False) -> None:
        make(folder, exist_ok=exist_ok)
        folder.rmdir()
        folder.symlink_to(tmp_path / "elsewhere")

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(Path, "mkdir", swapped)
    page, problem = write_beside_run(full(), tmp_path)
    assert page == "" and problem and not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_nothing_is_written_into_a_pipe_or_a_device_in_the_folder(tmp_path: Path, kind: str) -> None:
    page = tmp_path / "report" / "report.html"
    page.parent.mkdir()
    os.mkfifo(page) if kind == "pipe" else page.symlink_to("/dev/full")
    assert write_beside_run(full(), tmp_path) == (str(page), "")
    assert page.is_file() and not page.is_symlink()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file is in the way")
    page, problem = write_beside_run(full(), tmp_path)
    assert page == "" and problem.startswith("the report was not written into the run folder: ") and "\n" not in problem


def test_a_pipe_is_written_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        replace(pipe, "text")
        assert os.read(handle, 10) == b"text" and pipe.is_fifo()
    finally:
        os.close(handle)


def test_a_folder_that_is_absent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        replace(tmp_path / "absent" / "report.md", "text")
