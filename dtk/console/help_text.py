"""The texts of `--help`, one file of `help/` per command, folded to the terminal; columns and commands stay whole."""

import argparse
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEXTS = Path(__file__).with_name("help")
"""`<command>.txt`: the description, a line `---`, and what follows the options."""

_ROW = re.compile(r"(?P<indent> +)(?P<left>\S(?:.*?\S)?)(?P<gap> {2,})(?P<right>\S.*)")
_LABEL = re.compile(r"[A-Za-z][a-z ,]{2,40}: ")
_COMMAND = re.compile(r" +(?:dtk|python|torchrun) ")
_WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}
LEAST = 28  # Columns that the right one of two must have; with fewer it begins on a line of its own.
SLACK = 12  # Columns by which a line that was broken by hand may be shorter than the longest of its paragraph.


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """argparse's, with description and epilog folded; both keep their paragraphs, lists and examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent(fold(textwrap.dedent(text), width - len(indent)), indent)


def read_text(name: str, values: Mapping[str, object]) -> tuple[str, str | None]:
    """Return the description and the epilog of a command.

    Args:
        name: of the file in `help/`, without its suffix.
        values: name -> what stands for `{name}` in the text.
    """
    text = (TEXTS / f"{name}.txt").read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", str(value))
    description, _, epilog = text.partition("\n---\n")
    return description, epilog or None


def fold(text: str, width: int) -> str:
    """Wrap a help text so that no line exceeds `width` columns, as far as its words allow."""
    blocks = [_block(block.splitlines(), width) for block in text.strip("\n").split("\n\n")]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _block(lines: list[str], width: int) -> list[str]:
    folded: list[str] = []
    longest = max((len(line) for line in lines if not line.startswith(" ")), default=0)
    at = 0
    while at < len(lines):
        # Where the right one of two columns begins, also where the left one is empty; 0 in a line with one column.
        end = at + 1
        row, column = _ROW.fullmatch(lines[at]), _indent(lines[at])
        column = row.start("right") if row else column if column >= LEAST else 0
        while end < len(lines) and _goes_on(lines[end - 1], lines[end], column, longest):
            end += 1
        whole = " ".join([lines[at].rstrip(), *(line.strip() for line in lines[at + 1 : end])])
        folded += _line(whole, width)
        at = end
    return folded


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _goes_on(line: str, following: str, column: int, longest: int) -> bool:
    """Whether a line was broken by hand only because it was full."""
    if following.startswith(" "):
        return bool(column) and _indent(following) == column
    if line.startswith(" ") or line.endswith(":") or (line.endswith((".", ")")) and _LABEL.match(following)):
        return False
    return len(line) + 1 + len(following.split(" ", 1)[0]) > longest - SLACK


def _line(line: str, width: int) -> list[str]:
    if _indent(line) >= LEAST:  # beside a command that left no room
        return _wrapped(line.strip(), width, " " * 6)
    if len(line) <= width:
        return [line]
    row = _ROW.fullmatch(line)
    if row is None:
        return _plain(line, width)
    column = row.start("right")
    if width - column >= LEAST:
        return _wrapped(line, width, "", " " * column)
    below = row["indent"] + " " * 4
    return [*_plain(row["indent"] + row["left"], width), *_wrapped(row["right"], width, below)]


def _plain(line: str, width: int) -> list[str]:
    """One column: prose, an item of a list, or a command that can still be copied."""
    indent = " " * _indent(line)
    if _COMMAND.match(line):
        parts = _wrapped(line.strip(), width - 2, indent, indent + " " * 4)
        return [f"{part} \\" for part in parts[:-1]] + parts[-1:]
    return _wrapped(line.strip(), width, indent, indent + "  " if indent else "")


def _wrapped(text: str, width: int, first: str, below: str | None = None) -> list[str]:
    below = first if below is None else below
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=below, **_WHOLE_WORDS)


def show_help(parser: argparse.ArgumentParser) -> int:
    """Answer a command that was given no subcommand with its help; returns exit code 0."""
    parser.print_help()
    return 0
