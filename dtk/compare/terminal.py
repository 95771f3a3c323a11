"""A comparison in a terminal: the answer first, then parity, figures, why, and what disturbs them."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diagnostics.report.console import Writer, written
from diagnostics.runs.text import clean
from dtk.compare import tables
from dtk.compare.model import Comparison

_STYLES = {"same": "green", "DIFFERS": "bold red", "unknown": "yellow"}


def render(found: Comparison, *, columns: int | None, colour: bool) -> str:
    """The comparison as text.

    Args:
        found: what was found.
        columns: width of the terminal; None = a pipe.
        colour: with colours (ANSI).
    """
    return written(lambda console: _write(found, console, columns), columns=columns, colour=colour)


def _write(found: Comparison, console: Console, columns: int | None) -> None:
    writer = Writer(console, wrap=columns is not None)
    good = found.comparable
    writer.text(Text(clean(tables.headline(found)), style="bold green" if good else "bold red"))
    if found.checks:
        writer.title("Parity")
        _table(console, tables.parity(found.checks), left=3)
    if found.places:
        writer.title("Strategies and batches")
        _table(console, tables.grid(found))
    writer.title("Runs")
    _table(console, tables.overview(found), left=2)
    if found.figures:
        writer.title("Figures")
        _table(console, tables.figures(found), left=2)
    if found.scaling:
        writer.title("Scaling")
        _table(console, tables.scaling(found.scaling), left=2)
    if found.verdicts:
        writer.title("Why")
        for sentence in found.verdicts:
            writer.line("-", sentence, width=2)
    if found.notes:
        writer.title("Notes")
        for note in found.notes:
            writer.line("-", note, "yellow" if note.startswith(("disturbed", "unsteady")) else "", width=2)


def _table(console: Console, rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Aligned; what was read from files is never markup."""
    table = Table(box=None, pad_edge=False)
    for n, name in enumerate(rows[0]):
        table.add_column(Text(clean(name)), justify="left" if n < left else "right", overflow="fold")
    for row in rows[1:]:
        table.add_row(*(Text(clean(cell), style=_STYLES.get(cell, "")) for cell in row))
    console.print(table)
