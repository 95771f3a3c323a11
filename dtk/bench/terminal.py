"""The report in a terminal: the verdict or the best of each operation first, then all figures."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from diagnostics.analysis.statistics import METHOD
from diagnostics.report.console import Writer, written
from diagnostics.runs.text import clean
from dtk.bench import tables
from dtk.bench.bandwidth import DEFINITIONS
from dtk.bench.model import BenchReport


def render(report: BenchReport, *, columns: int | None, colour: bool, page: str = "") -> str:
    """The report as text.

    Args:
        report: what to show.
        columns: width of the terminal; None = a pipe.
        colour: with colours (ANSI).
        page: path of the HTML page to name at the end.
    """
    return written(
        lambda console: _Writer(console, wrap=columns is not None).report(report, page), columns=columns, colour=colour
    )


class _Writer(Writer):
    """Writes one report to one console."""

    def report(self, report: BenchReport, page: str) -> None:
        """Everything."""
        self.text(Text(clean(tables.title(report)), style="bold"))
        if report.failure:
            self.text(Text(clean(f"ended early: {report.failure}"), style="bold red"))
        if report.wrong:
            self.text(Text("WRONG RESULTS: see the last column", style="bold red"))
        if len(report.sides) == 2:
            self.text(Text(clean(tables.verdict(report)), style="bold"))
        for name, variables in tables.sides(report):
            self.line(clean(name), variables, width=max(len(clean(name)) + 2, 8))
        for line in tables.best(report):
            self.line("best", line)
        if report.gains:
            self.title("Side by side, launches in turns")
            self.console.print(table(tables.gains(report)))
        if report.results:
            self.title("All figures")
            self.console.print(table(tables.results(report)))
        for operation, reason in tables.left_out(report):
            self.line("left out", f"{operation} {reason}", width=10)
        self._meaning(report, page)

    def _meaning(self, report: BenchReport, page: str) -> None:
        self.console.print()
        for name in ("algbw", "busbw", "time", "in_place"):
            self.line(name, DEFINITIONS[name], "dim", width=10)
        self.line("interval", METHOD, "dim", width=10)
        for note in report.notes:
            self.line("note", note, "yellow", width=10)
        if page:
            self.line("page", page, width=10)


def table(rows: Sequence[Sequence[str]]) -> Table:
    """Aligned columns; the first row is the heading."""
    made = Table(box=None, pad_edge=False)
    for n, name in enumerate(rows[0]):
        made.add_column(Text(clean(name)), justify="right" if tables.numeric(rows, n) else "left", overflow="fold")
    for row in rows[1:]:
        made.add_row(*(Text(clean(cell)) for cell in row))
    return made
