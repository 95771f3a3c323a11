"""Writes the result of a command to standard output or a file, a report as text, Markdown, JSON or HTML page. Imports
no slow modules; renderers when needed.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from diagnostics.contract.formatting import clean
from dtk.errors import DtkError, refused

if TYPE_CHECKING:
    from diagnostics.report.document import Document

_UNSEEN = re.compile(r"(?!\t|\n|\x1b\[[\d;]*m)[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Sequences that a terminal interprets, other than colors: control characters, and those that change text direction."""
Report = TypeVar("Report")


def columns() -> int | None:
    """Return the width of the terminal on standard output; None if it is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def colours(choice: str = "auto") -> bool:
    """Return whether to use colors: `always`, `never`, or `auto`, which checks the terminal, NO_COLOR and TERM."""
    if choice != "auto":
        return choice == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def put(text: str) -> None:
    """Write to standard output, all of it, in the characters that it can show: names may be somebody else's; DtkError
    if writing fails, except with a broken pipe, which raises BrokenPipeError.
    """
    encoding, text = sys.stdout.encoding or "utf-8", _UNSEEN.sub(lambda sign: clean(sign[0]), text)
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # Buffered data would fail again at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        why = error.strerror or str(error)
        raise DtkError("cannot write to standard output", why, "redirect it to another place") from error


def print_line(text: str = "") -> None:
    """Write a line, as `put` does."""
    put(f"{text}\n")


def check_page(path: Path | None, default: Path) -> None:
    """Reject a page that cannot be written, before doing the work that it shows; DtkError if the name is empty or a
    folder, or its folder is missing or not writable.
    """
    if path is None:
        return
    if path == Path():  # Includes an empty name.
        raise DtkError("--html names no file", fix=f"write --html {default}")
    if path.is_dir():
        raise DtkError(f"cannot write {path}", "it is a folder", f"write --html {path / default}")
    if not path.parent.is_dir():
        raise DtkError(f"cannot write {path}", f"there is no folder {path.parent}", "make it, or choose another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise DtkError(f"cannot write {path}", f"no permission in {path.parent}", "choose another file")


def write(path: Path, text: str) -> None:
    """Write a file atomically; DtkError if the folder is absent, full or read-only."""
    from diagnostics.report.files import replace

    with refused(f"cannot write {path}", "choose another file"):
        replace(path, text)


def rendered(document: "Document", color: str = "auto") -> str:
    """Return a document as text for standard output; `color` as in `colours`."""
    from diagnostics.report import terminal

    return terminal.render(document, columns=columns(), colour=colours(color))


def hand_over(
    arguments: argparse.Namespace,
    report: Report,
    as_json: Callable[[Report], dict[str, Any]],
    document: "Callable[..., Document]",
    **named: Any,
) -> None:
    """Write the page of `--html`, then put the report on standard output.

    `page=True` among the options of the terminal document is replaced by the path of the page, if written.
    DtkError if writing failed; an error of the page is raised after the text is written.
    """
    from diagnostics.report import html, jsonform, markdown

    page: Path | None = getattr(arguments, "html", None)
    problem: DtkError | None = None
    try:
        if page is not None:
            write(page, html.render(document(report)))
    except DtkError as error:  # Raised after the text on standard output, which is not lost.
        problem = error
    if arguments.json:
        text = jsonform.text(as_json(report))
    elif getattr(arguments, "markdown", False):
        text = markdown.render(document(report))
    else:
        if named.pop("page", False):
            named["page"] = "" if page is None or problem is not None else str(page)
        text = rendered(document(report, **named), getattr(arguments, "color", "auto"))
    put(text)
    if problem is not None:
        raise problem
