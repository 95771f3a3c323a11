"""Every `--help` fits a terminal of 80 columns, says all that was written, and keeps examples and lists readable."""

import argparse
import contextlib
import io
from collections.abc import Iterator

import pytest

from dtk.commands.main import make_parser
from dtk.config.folders import conf_folder, groups
from dtk.config.help import help_text
from dtk.console.options import HelpFormatter, fold
from dtk.run import main as run


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action.choices.values():
                yield from parsers(choice)


ALL = {argument_parser.prog: argument_parser for argument_parser in parsers(make_parser()[0])}
for parser in ALL.values():
    parser.format_help()  # Reads the text of the command.


def words(text: str) -> list[str]:
    return [word for word in text.split() if word != "\\"]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_every_help_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    texts = {prog: parser.format_help() for prog, parser in ALL.items()} | {"choices": fold(help_text(), columns - 2)}
    assert len(texts) > 15
    for prog, text in texts.items():
        wide = [line for line in text.splitlines() if len(line) > columns and len(line.split()) > 2]
        assert not (wide and columns >= 80), (prog, wide)
        whole = "\n".join((ALL[prog].description or "", ALL[prog].epilog or "")) if prog in ALL else help_text()
        assert set(words(whole)) <= set(words(text)) | {"%%"}, prog


def test_whoever_writes_a_text_gets_the_formatter() -> None:
    for prog, parser in ALL.items():
        if parser.epilog:
            assert parser.formatter_class is HelpFormatter, prog


def helped(*arguments: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        run(["--help", *arguments])
    assert ended.value.code == 0
    return printed.getvalue()


def test_dtk_run_help_is_short_and_says_more_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, everything, fault = helped(), helped("all"), helped("fault")
    assert len(short.splitlines()) < 90
    assert all(word in short for word in ("--dry-run", "fsdp", "gpt2_tiny", "examples:", "--help fault"))
    assert "sigkill" not in short and short.index("model") < short.index("strategy") < short.index("launcher")
    assert "One rank is killed by SIGKILL" in " ".join(fault.split()) and "--dry-run" not in fault
    for group, options in groups([conf_folder()]).items():
        assert f"\n    {group} " in short, group
        assert f"\n  {group}\n" in everything
        assert all(f"    {option} " in everything for option in options)


def test_help_on_what_is_no_group_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help", "startegy"]) == 2
    assert 'there is no group "startegy" - did you mean strategy?' in capsys.readouterr().err
