"""The parser of `dtk`, and the options that several commands have: numbers within bounds, --json, --html."""

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from diagnostics.contract.invocation import command
from dtk.console.help_text import HelpFormatter
from dtk.errors import DtkError

Options = TypeVar("Options", bound=Any)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error of dtk, and folds its help to the terminal."""

    def __init__(self, *, formatter_class: Any = HelpFormatter, **options: Any) -> None:
        super().__init__(formatter_class=formatter_class, **options)

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
    told = about if default is None else f"{about} (default: {default:g})"
    parser.add_argument(name, type=parse, default=default, metavar=metavar, help=told)


def taken(kind: type[Options], arguments: argparse.Namespace, **more: Any) -> Options:
    """Build a dataclass from the options that are called like its fields, lists as tuples, and from `more`."""
    given = {one.name: getattr(arguments, one.name) for one in fields(kind) if one.name not in more}
    more |= {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    made: Options = kind(**more)
    return made


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output and nothing else")


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
