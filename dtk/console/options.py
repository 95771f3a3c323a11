"""The parser of `dtk` and the options of its commands, read from one table (TOML) each; some options are shared."""

import argparse
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from diagnostics.contract.invocation import command
from dtk.console.help_text import HelpFormatter, read_text, show_help
from dtk.errors import DtkError

Options = TypeVar("Options", bound=Any)


class Parser(argparse.ArgumentParser):
    """Parser that reports errors in one line, like all of dtk, and wraps its help to the terminal.

    `text` names the file with description and epilog (`help_text.read_text`), which is read when help is asked for.
    """

    def __init__(self, *, text: str = "", values: Mapping[str, object] | None = None, **options: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, **options)
        self.text = text
        self.values = values or {}

    def format_help(self) -> str:
        """Return the help, with the text of the command."""
        if self.text:
            self.description, self.epilog = read_text(self.text, self.values)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise DtkError, so that an invalid option is reported in one line without the usage."""
        raise DtkError(message, fix=command(*self.prog.split()[1:], "--help"))


def above_zero(most: float) -> Callable[[str], float]:
    """Return a parser for a number in (0, `most`]; it rejects anything else, NaN included."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to {most:,g}")
        return value

    return parse


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for a whole number in [`least`, `most`]."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least:,} to {most:,}")
        return int(text)

    return parse


def read_options(module: str) -> dict[str, Any]:
    """Return the table of options in the TOML file beside a module, which has the module's name."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))


def add_options(parser: argparse._ActionsContainer, table: Mapping[str, Any], **values: Any) -> None:
    """Add the options of a table: name or names -> arguments of `add_argument`.

    A text alone is a flag, or a common option (options.toml) with a help of its own; `true` is a common option as it
    is. `whole = [least, most]` and `above_zero = most` bound a number, whose default ends the help; options with the
    same `either` exclude each other. `{name}` is replaced by its value: within a text, a sequence is joined; alone, any
    object.
    """
    common, groups = read_options(__file__), dict[str, argparse._ActionsContainer]()
    values = {**common["values"], **values}
    for name, entry in table.items():
        given = entry if isinstance(entry, dict) else common.get(name, {"action": "store_true"})
        if isinstance(entry, str):
            given = {**given, "help": entry}
        options = {key: _filled(key, value, values) for key, value in given.items()}
        if options.get("type") == "Path":
            options["type"] = Path
        if "whole" in options or "above_zero" in options:
            is_whole = "whole" in options
            options["type"] = whole(*options.pop("whole")) if is_whole else above_zero(options.pop("above_zero"))
            if isinstance(default := options.get("default"), int | float):
                options["help"] += f" (default: {default:g})"
            options.setdefault("metavar", "N")
        if isinstance(options.get("metavar"), list):
            options["metavar"] = tuple(options["metavar"])
        group = options.pop("either", "")
        if group and group not in groups:
            groups[group] = parser.add_mutually_exclusive_group()
        groups.get(group, parser).add_argument(*name.split(), **options)


def _filled(key: str, entry: Any, values: Mapping[str, Any]) -> Any:
    if entry == argparse.SUPPRESS:  # argparse compares by identity.
        return argparse.SUPPRESS
    for name, value in values.items() if isinstance(entry, str) else ():
        if key != "help" and entry == f"{{{name}}}":
            return value
        entry = entry.replace(f"{{{name}}}", ", ".join(value) if isinstance(value, tuple) else str(value))
    return entry


def add_command(
    commands: "argparse._SubParsersAction[Any]",
    name: str,
    table: Mapping[str, Any],
    run: Callable[[argparse.Namespace], int] | None,
    **values: Any,
) -> Parser:
    """Add a subcommand.

    Its table has help, usage, text, defaults and options, all but the first optional. A command without `run` prints
    its help.
    """
    about, text = str(table["help"]), str(table.get("text", name))
    parser: Parser = commands.add_parser(name, text=text, values=values, help=about, usage=table.get("usage"))
    parser.description = None if text else f"{about[0].upper()}{about[1:]}."
    add_options(parser, table.get("options", {}), **values)
    parser.set_defaults(command=run or (lambda arguments: show_help(parser)), **table.get("defaults", {}))
    return parser


def taken(kind: type[Options], arguments: argparse.Namespace, **more: Any) -> Options:
    """Build a dataclass from the options named like its fields, with lists as tuples, and from `more`."""
    given = {field.name: getattr(arguments, field.name) for field in fields(kind) if field.name not in more}
    more |= {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    options: Options = kind(**more)
    return options
