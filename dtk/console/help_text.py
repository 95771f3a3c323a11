"""The texts of `--help`: one file in `help/` per command, one line per paragraph, wrapped to the terminal."""

import argparse
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEXTS = Path(__file__).with_name("help")
"""`<command>.txt`: the description, a line `---`, and what follows the options."""

_ROW = re.compile(r"(?P<indent> +)(?P<left>\S(?:.*?\S)?)(?P<gap> {2,})(?P<right>\S.*)")
_COMMAND = re.compile(r" +(?:dtk|python|torchrun) ")
_WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}
LEAST = 28  # Minimum width of the right column; with less, it begins on a separate line.


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
