"""The parser of `dtk`, and the options that several commands have: numbers within bounds, --json, --html."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from diagnostics.contract.invocation import command
from dtk.console.help_text import HelpFormatter, read_text
from dtk.errors import DtkError

Options = TypeVar("Options", bound=Any)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error of dtk, and folds its help to the terminal.

    Args:
        text: name of the file with description and epilog (`help_text.read_text`), read when help is asked for.
        values: for the placeholders in that text.
        formatter_class: of argparse.
        options: of argparse.
    """

    def __init__(
        self,
        *,
        text: str = "",
        values: Mapping[str, object] | None = None,
        formatter_class: Any = HelpFormatter,
        **options: Any,
    ) -> None:
        super().__init__(formatter_class=formatter_class, **options)
        self.text = text
        self.values = values or {}

    def format_help(self) -> str:
        """Return the help, with the text of the command."""
        if self.text:
            self.description, self.epilog = read_text(self.text, self.values)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise DtkError, so that a wrong option is reported in one line without the usage above it."""
        raise DtkError(message, fix=command(*self.prog.split()[1:], "--help"))


def above_zero(most: float) -> Callable[[str], float]:
    """Return a parser for a number in (0, `most`]; it rejects anything else, NaN included."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and up to {most:,g}")
        return value

    return parse


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for a whole number in [`least`, `most`]."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least:,} to {most:,}")
        return int(text)

    return parse


def add_number(
    parser: argparse.ArgumentParser,
    name: str,
    parse: Callable[[str], float],
    about: str,
    default: float | None = None,
    metavar: str = "N",
) -> None:
    """Add an option that takes a number; its help ends in the default, if there is one.

    Args:
        parser: gets it.
        name: such as `--steps`.
        parse: see `whole` and `above_zero`.
        about: the help.
        default: when it is not given.
        metavar: what stands for the number in the help: `S` for seconds.
    """
    about = about if default is None else f"{about} (default: {default:g})"
    parser.add_argument(name, type=parse, default=default, metavar=metavar, help=about)


def taken(kind: type[Options], arguments: argparse.Namespace, **more: Any) -> Options:
    """Build a dataclass from the options that are called like its fields, lists as tuples, and from `more`."""
    given = {field.name: getattr(arguments, field.name) for field in fields(kind) if field.name not in more}
    more |= {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    made: Options = kind(**more)
    return made


def add_flags(parser: argparse._ActionsContainer, **flags: str) -> None:
    """Add options without a value: `dry_run="help"` is `--dry-run`, false unless it is given."""
    for name, about in flags.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=about)


def add_verbose(parser: argparse.ArgumentParser, about: str = "the fault tree, all evidence, all findings") -> None:
    """Add `-v` and `--verbose`."""
    parser.add_argument("-v", "--verbose", action="store_true", help=about)


def add_overrides(parser: argparse.ArgumentParser, about: str = "as for dtk run") -> None:
    """Add the positional arguments KEY=VALUE."""
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=about)


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add `--json`."""
    add_flags(parser, json="one JSON object on standard output and nothing else")


def add_page(parser: argparse.ArgumentParser, page: Path) -> None:
    """Add `--html [FILE]`."""
    text = f"write the page as well (default: {page})"
    parser.add_argument("--html", nargs="?", type=Path, const=page, metavar="FILE", help=text)


def add_colour(parser: argparse.ArgumentParser) -> None:
    """Add `--color`."""
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="auto honours NO_COLOR")


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """Add `--config-dir`."""
    text = "a folder of your own YAML files, searched before dtk's"
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help=text)
