"""Writes the report's files atomically: readers see either the old file or the new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diagnostics.contract.files import replacing
from diagnostics.report import html, jsonform, markdown
from diagnostics.report.diagnosis import document
from diagnostics.report.model import Report


def write_beside_run(report: Report, run_folder: Path) -> tuple[str, str]:
    """Write report/report.json, .md and .html into a run folder; return the path of the page, or why there is none."""
    folder = run_folder / "report"
    if folder.is_symlink():  # Of a run by somebody else, it may lead to files of the reader.
        return "", f"the report was not written into the run folder: {folder} is a link"
    built = document(report, files="..")
    forms = {"json": jsonform.text(jsonform.as_json(report)), "md": markdown.render(built), "html": html.render(built)}
    try:
        folder.mkdir(exist_ok=True)
        with _open_folder(folder) as place:
            for ending, text in forms.items():
                with replacing(place / f"report.{ending}") as temporary:  # Replaces even a pipe of that name.
                    temporary.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        return "", f"the report was not written into the run folder: {folder}: {error.strerror or error}"
    return str(folder / "report.html"), ""


@contextmanager
def _open_folder(folder: Path) -> Iterator[Path]:
    """Yield a path that remains this folder even if it is renamed; raise OSError if it is a link."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows, where folders cannot be opened.
        yield folder
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        place = Path(f"/proc/self/fd/{handle}")
        yield place if place.exists() else folder
    finally:
        os.close(handle)


@contextmanager
def replacing_typed(path: Path) -> Iterator[Path]:
    """As `replacing`, for a path that the user typed: a device or pipe such as /dev/stdout is yielded itself."""
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    with replacing(path) as temporary:
        yield temporary


def replace(path: Path, text: str) -> None:
    """Replace a file atomically; OSError if its folder is absent, full or read-only."""
    with replacing_typed(path) as file:
        file.write_text(text, encoding="utf-8", errors="replace")
