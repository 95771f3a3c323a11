"""Where reports go: standard output in what it can show, files whole or not at all, pages checked beforehand."""

import io
import os
import sys
from pathlib import Path

import pytest

from dtk.console import output
from dtk.errors import DtkError


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_colours_and_columns_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert output.columns() is None and not output.colours()
    assert output.colours("always") and not output.colours("never")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert output.columns() == 77 and output.colours() and not output.colours("never")


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colours(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv(name, value)
    assert not output.colours() and output.colours("always")


def test_characters_that_the_terminal_lacks_do_not_end_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    output.print_line("50 µs → done")
    assert raw.getvalue() == b"50 ?s ? done\n"


def test_what_a_terminal_would_obey_is_made_visible_but_colours(capsys: pytest.CaptureFixture[str]) -> None:
    output.put("\x1b[1;31mred\x1b[0m\ta\x1b]0;title\x07b\x9b2Jc\u202ed\x1b[2Je\r\n")
    assert capsys.readouterr().out == "\x1b[1;31mred\x1b[0m\ta\\x1b]0;title\\x07b\\x9b2Jc\\u202ed\\x1b[2Je\\r\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(DtkError, match="cannot write to standard output: No space left on device"):
            output.put("text\n")
        full.flush()  # What was buffered goes to /dev/null now, also at the end of the interpreter.


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    path.write_text("before", encoding="utf-8")
    output.write(path, "after\n")
    assert path.read_text(encoding="utf-8") == "after\n" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(DtkError, match=f"cannot write {tmp_path}/none/report.txt: No such file"):
        output.write(tmp_path / "none" / "report.txt", "x")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "--html names no file - write --html page.html"),
        (".", "--html names no file - write --html page.html"),
        ("folder", "cannot write folder: it is a folder - write --html folder/page.html"),
        ("none/page.html", "cannot write none/page.html: there is no folder none - make it, or choose another file"),
        ("closed/page.html", "cannot write closed/page.html: no permission in closed - choose another file"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "closed").mkdir(mode=0o500)
    if name.startswith("closed") and os.access("closed", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(DtkError) as caught:
        output.check_page(Path(name), Path("page.html"))
    assert str(caught.value) == message


def test_a_page_that_can_be_written_passes(tmp_path: Path) -> None:
    output.check_page(tmp_path / "new.html", Path("page.html"))
    (tmp_path / "old.html").touch()
    output.check_page(tmp_path / "old.html", Path("page.html"))
