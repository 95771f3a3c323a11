"""The report in a terminal: the answer first, then memory, traffic, time, and what was asked for beside it."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from diagnostics.report.console import Writer, written
from diagnostics.runs.text import clean
from dtk.plan.formatting import bytes_text
from dtk.plan.prediction import Prediction
from dtk.plan.report import tables
from dtk.plan.report.model import PlanReport

_BAR = 40
_COMPARED = "* the simplest that fits; checkpointing = activation checkpointing of every block, offload = to the host."


def render(report: PlanReport, *, columns: int | None, colour: bool, page: str = "") -> str:
    """The report as text.

    Args:
        report: what to show.
        columns: width of the terminal; None = a pipe: sentences stay on one line.
        colour: with colours (ANSI).
        page: path of the HTML page to name at the end.
    """
    return written(
        lambda console: _Writer(console, wrap=columns is not None).report(report, page), columns=columns, colour=colour
    )


class _Writer(Writer):
    """Writes one report to one console."""

    def report(self, report: PlanReport, page: str) -> None:
        plan = report.plan
        style = {True: "bold green", False: "bold red", None: "bold"}[plan.fits]
        self.text(Text(clean(tables.verdict(plan)), style=style))
        self.line("job", tables.title(plan))
        self.line("batch", tables.batch(plan))
        self.line("compute", tables.precision(report))
        self._memory(plan)
        self._traffic(plan, report.local_size)
        self._time(plan)
        self._check(report)
        self._asked(report)
        self._notes(report, page)

    def _memory(self, plan: Prediction) -> None:
        self.title(f"Memory of the fullest rank ({plan.memory.rank}) at the peak")
        whole = plan.memory.peak_bytes or 1
        most = max((size for _, size in tables.memory(plan)), default=1)
        table = _table([("", "", "", "")])
        for name, size in tables.memory(plan):
            bar = Text("#" * max(1, round(_BAR * size / most)), style="cyan")
            table.add_row(Text(name), Text(bytes_text(size)), Text(_share(size / whole)), bar)
        table.add_row(Text("together", style="bold"), Text(bytes_text(plan.memory.peak_bytes), style="bold"))
        table.show_header = False
        for column in table.columns[1:3]:
            column.justify = "right"
        self.console.print(table)
        self.line("peak", tables.regions(plan))
        if tables.host(plan):
            self.line("host", f"{tables.host(plan)} in host memory")

    def _traffic(self, plan: Prediction, local_size: int) -> None:
        self.title(f"Communication of one rank per step ({local_size} ranks a node)")
        if not plan.traffic:
            self.text(Text("none"))
            return
        self.console.print(_table(tables.traffic(plan)))

    def _time(self, plan: Prediction) -> None:
        if plan.time is None:
            return
        self.title(f"Time of one step on {plan.hardware}")
        for name, value in tables.time(plan.time):
            self.line(name, value, width=15)
        rows = tables.transfers(plan.time)
        if len(rows) > 1:
            self.console.print(_table(rows))

    def _check(self, report: PlanReport) -> None:
        if report.check is None:
            return
        self.title(tables.CHECKED)
        told = tables.agreement(report.check)
        self.line("check", told, "yellow" if report.check.differences else "green")
        if report.check.differences:
            self.console.print(_table(tables.differences(report.check.differences)))

    def _asked(self, report: PlanReport) -> None:
        """The sections of options."""
        if report.comparison is not None:
            self.title("Strategies side by side, the simplest first")
            self.console.print(_table(tables.comparison(report.comparison)))
            self.text(Text(_COMPARED, style="dim"))
            for label, remark in tables.remarks(report.comparison):
                self.line(label, remark, "dim")
            chosen = report.comparison.recommended
            if chosen is not None:
                self.line("take", " ".join(chosen.overrides), "bold green")
            for reason in report.comparison.reasons:
                self.line("why", reason)
        if report.scaling:
            self.title("Over numbers of ranks (each rank does as much as here, so the batch grows)")
            self.console.print(_table(tables.scaling(report.scaling)))
            for label, remark in tables.impossible(report.scaling):
                self.line(label, remark)
        if report.models:
            self.title("Largest model that fits")
            self.console.print(_table(tables.largest(report.models)))
        if report.batch is not None:
            self.title("Largest micro-batch that fits")
            self.console.print(_table(tables.largest([report.batch])))

    def _notes(self, report: PlanReport, page: str) -> None:
        made = tables.notes(report.plan, report.check, report.notes)
        if made:
            self.title("Assumed")
        for note in made:
            self.line("-", note, "dim", width=2)
        if page:
            self.line("page", page)


def _table(rows: Sequence[Sequence[str]]) -> Table:
    """Aligned columns; the first row is the heading."""
    table = Table(box=None, pad_edge=False)
    for n, name in enumerate(rows[0]):
        figures = (
            n > 0 and len(rows) > 1 and all(row[n].lstrip("<> ")[:1].isdigit() or row[n] == "-" for row in rows[1:])
        )
        table.add_column(Text(name), justify="right" if figures else "left", overflow="fold")
    for row in rows[1:]:
        table.add_row(*(Text(clean(cell)) for cell in row))
    return table


def _share(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.005 else "< 1 %"
