"""The parser of `dtk` and the options of its commands, read from one table (TOML) each; some options are shared. The
texts of `--help` are one file in `help/` per command, one line per paragraph, wrapped to the terminal.
"""

import argparse
import re
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from diagnostics.contract.formatting import command
from dtk.errors import DtkError

Options = TypeVar("Options", bound=Any)
TEXTS = Path(__file__).with_name("help")
"""`<command>.txt`: the description, a line `---`, and what follows the options."""

_ROW = re.compile(r"(?P<indent> +)(?P<left>\S(?:.*?\S)?)(?P<gap> {2,})(?P<right>\S.*)")
_COMMAND = re.compile(r" +(?:dtk|python|torchrun) ")
_WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}
LEAST = 28  # Minimum width of the right column; with less, it begins on a separate line.


class Parser(argparse.ArgumentParser):
    """Parser that reports errors in one line, like all of dtk, and wraps its help to the terminal.

    `text` names the file with description and epilog (`read_text`), which is read when help is asked for.
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
    same `either` exclude each other. `{name}` is replaced by its value: in a text, a sequence is joined; alone, any.
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
    """Add a subcommand by its table: help, maybe usage, text, defaults, options. Without `run` it prints its help."""
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


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter that wraps description and epilog line by line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent(fold(textwrap.dedent(text), width - len(indent)), indent)


def read_text(name: str, values: Mapping[str, object]) -> tuple[str, str | None]:
    """Return the description and the epilog of a command; `{name}` in them is replaced by its value."""
    text = (TEXTS / f"{name}.txt").read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", str(value))
    description, _, epilog = text.partition("\n---\n")
    return description, epilog or None


def fold(text: str, width: int) -> str:
    """Wrap each line of a help text so that none exceeds `width` columns, as far as its words allow."""
    lines = [_line(line.rstrip(), width) if line.strip() else [""] for line in text.strip("\n").splitlines()]
    return "\n".join(part for parts in lines for part in parts) + "\n"


def _line(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    row = _ROW.fullmatch(line)
    if row is None:
        return _plain(line, width)
    column = row.start("right")
    if width - column >= LEAST:
        return wrapped(line, width, "", " " * column)
    below = row["indent"] + " " * 4
    return [*_plain(row["indent"] + row["left"], width), *wrapped(row["right"], width, below)]


def _plain(line: str, width: int) -> list[str]:
    """Wrap prose, an item of a list, or a command, which can still be copied."""
    indent = " " * (len(line) - len(line.lstrip()))
    if _COMMAND.match(line):
        parts = wrapped(line.strip(), width - 2, indent, indent + " " * 4)
        return [f"{part} \\" for part in parts[:-1]] + parts[-1:]
    return wrapped(line.strip(), width, indent, indent + "  " if indent else "")


def wrapped(text: str, width: int, first: str = "", below: str | None = None) -> list[str]:
    """Return the lines of a text, of whole words; `first` indents the first line, `below` the others."""
    below = first if below is None else below
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=below, **_WHOLE_WORDS)


def show_help(parser: argparse.ArgumentParser) -> int:
    """Print the help of a command without a subcommand; return exit code 0."""
    parser.print_help()
    return 0
