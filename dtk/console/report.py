"""Prints a report as text, Markdown or JSON and writes its HTML page; imports renderers when needed."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dtk.console import output
from dtk.errors import DtkError

if TYPE_CHECKING:
    from diagnostics.report.document import Document

Report = TypeVar("Report")


def rendered(document: "Document", color: str = "auto") -> str:
    """Return a document as text for standard output; `color` as in `output.colours`."""
    from diagnostics.report import terminal

    return terminal.render(document, columns=output.columns(), colour=output.colours(color))


def hand_over(
    arguments: argparse.Namespace,
    report: Report,
    as_json: Callable[[Report], dict[str, Any]],
    document: "Callable[..., Document]",
    **named: Any,
) -> None:
    """Write the page of `--html`, then put the report on standard output.

    `page=True` among the options of the terminal document is replaced by the path of the page, if written.

    Raises:
        DtkError: writing failed; an error of the page is raised after the text is written.
    """
    from diagnostics.report import html, jsonform, markdown

    page: Path | None = getattr(arguments, "html", None)
    problem: DtkError | None = None
    try:
        if page is not None:
            output.write(page, html.render(document(report)))
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
    output.put(text)
    if problem is not None:
        raise problem
