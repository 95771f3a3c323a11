"""Options that several commands share: bounds, defaults in the help, and one line for what is wrong."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import pytest

from dtk.console.options import Parser, above_zero, add_command, add_options, taken, whole
from dtk.errors import DtkError


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e400", "x", "", "10.5"])
def test_numbers_out_of_bounds_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number above 0 and up to 10"):
        above_zero(10)(text)


@pytest.mark.parametrize("text", ["0", "11", "-3", "2.0", "x", "", " 2", "\u00b2"])
def test_whole_numbers_out_of_bounds_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number from 1 to 10"):
        whole(1, 10)(text)


def test_bounds_are_part_of_the_range() -> None:
    assert above_zero(10)("10") == 10.0 and above_zero(10)("1e-9") == 1e-9
    assert whole(1, 10)("1") == 1 and whole(1, 10)("10") == 10


def test_the_help_of_a_number_ends_in_its_default() -> None:
    parser = Parser(prog="dtk x")
    steps = {"whole": [1, 9], "default": 3, "help": "how many"}
    add_options(parser, {"--steps": steps, "--limit-s": {"above_zero": 9, "help": "how long", "metavar": "S"}})
    text = parser.format_help()
    assert "--steps N" in text and "how many (default: 3)" in text
    assert "--limit-s S" in text and "how long (default" not in text
    assert parser.parse_args([]) == argparse.Namespace(steps=3, limit_s=None)
    with pytest.raises(DtkError, match="not a whole number from 1 to 9"):
        parser.parse_args(["--steps", "10"])


def test_flags_are_false_until_they_are_given() -> None:
    parser = Parser(prog="dtk x")
    flags = {"--dry-run": "start nothing", "--force": "all the same", "--json": True, "-v --verbose": True}
    add_options(parser, flags)
    assert vars(parser.parse_args([])) == {"dry_run": False, "force": False, "json": False, "verbose": False}
    assert parser.parse_args(["--dry-run", "-v"]).dry_run is True
    assert "--dry-run" in parser.format_help() and "start nothing" in parser.format_help()


def test_paths_and_overrides() -> None:
    parser = Parser(prog="dtk x")
    add_options(parser, {"overrides": "what differs", "--config-dir": True, "--html": True}, page=Path("page.html"))
    assert vars(parser.parse_args([])) == {"overrides": [], "config_dir": None, "html": None}
    given = parser.parse_args(["a=1", "b=2", "--config-dir", "mine", "--html"])
    assert (given.overrides, given.config_dir, given.html) == (["a=1", "b=2"], Path("mine"), Path("page.html"))
    assert parser.parse_args(["--html", "x.html"]).html == Path("x.html")
    assert "what differs" in parser.format_help() and "(default: page.html)" in parser.format_help()


def test_values_of_the_program_stand_in_choices_and_texts_and_options_can_exclude_each_other() -> None:
    parser = Parser(prog="dtk x")
    color = {"choices": "{forms}", "default": "a", "help": "one of {forms}", "either": "form"}
    add_options(parser, {"--form": color, "--none": {"action": "store_true", "either": "form"}}, forms=("a", "b"))
    assert "one of a, b" in parser.format_help() and parser.parse_args(["--form", "b"]).form == "b"
    with pytest.raises(DtkError, match="not allowed with"):
        parser.parse_args(["--form", "b", "--none"])


def test_a_command_without_an_answer_of_its_own_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="dtk")
    add_command(parser.add_subparsers(), "bench", {"help": "measure this machine", "text": ""}, None)
    arguments = parser.parse_args(["bench"])
    assert arguments.command(arguments) == 0 and "Measure this machine." in capsys.readouterr().out


def test_a_wrong_option_is_one_line_that_leads_to_the_help() -> None:
    parser = Parser(prog="dtk x")
    with pytest.raises(DtkError) as caught:
        parser.parse_args(["--nonsense"])
    assert caught.value.what == "unrecognized arguments: --nonsense" and caught.value.fix.endswith("x --help")


def test_the_text_of_a_command_is_read_when_help_is_asked_for() -> None:
    parser = Parser(prog="dtk watch", text="watch", values={"stall_timeout_s": "77"})
    assert parser.description is None and parser.epilog is None
    assert "longer than the limit (77 s)" in " ".join(parser.format_help().split())
    assert str(parser.description).startswith("Run a command and watch every rank")


@dataclass(frozen=True)
class Options:
    """What a command hands on."""

    names: tuple[str, ...]
    steps: int
    device: str


def test_a_dataclass_is_built_from_options_of_the_same_names() -> None:
    arguments = argparse.Namespace(names=["a", "b"], steps=3, other="left out")
    assert taken(Options, arguments, device="cpu") == Options(("a", "b"), 3, "cpu")
    assert taken(Options, arguments, device="cpu", steps=9).steps == 9
    with pytest.raises(AttributeError):
        taken(Options, arguments)
