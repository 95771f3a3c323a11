"""The report of `dtk tune` in a terminal: the verdict and what to type first, then every candidate."""

from rich.text import Text

from diagnostics.analysis.statistics import METHOD, Estimate
from diagnostics.contract.formatting import bytes_text, counted
from diagnostics.contract.invocation import command
from diagnostics.report.console import Writer, written
from diagnostics.runs.text import clean
from dtk.bench.terminal import table
from dtk.tune.model import Row, TuneReport


def render(report: TuneReport, *, columns: int | None, colour: bool) -> str:
    """The report as text.

    Args:
        report: what to show.
        columns: width of the terminal; None = a pipe.
        colour: with colours (ANSI).
    """
    return written(
        lambda console: _Writer(console, wrap=columns is not None).report(report), columns=columns, colour=colour
    )


class _Writer(Writer):
    """Writes one report to one console."""

    def report(self, report: TuneReport) -> None:
        """Everything."""
        self.text(Text(clean(report.verdict), style="bold green" if report.take is not None else "bold"))
        job = " ".join(report.job)
        ranks = f"{counted(report.world_size, 'rank')} on {report.device}"
        self.line("job", f"{job}; {ranks}" if job else ranks)
        if report.take is not None:
            self.line("type", command("run", *report.job, report.take.override))
        if report.rows:
            self.console.print()
            self.console.print(table(_rows(report)))
            self.console.print()
        self.line("interval", METHOD, "dim", width=10)
        self.line(
            "probes", f"runs of their own with {' '.join(report.terms)}; {report.seconds:.0f} s in all", "dim", width=10
        )
        for note in report.notes:
            self.line("note", note, "yellow", width=10)
        if report.kept is not None:
            self.line("kept", f"{report.kept}; {command('ls', report.kept)}", width=10)


def _rows(report: TuneReport) -> list[tuple[str, ...]]:
    over = "" if report.reference is None else f"over {report.reference.value}"
    heading = ("value", "ended", "tokens/s", "interval", "peak memory", over, "interval", "")
    return [heading, *(_row(one, report) for one in report.rows)]


def _row(one: Row, report: TuneReport) -> tuple[str, ...]:
    mark = " (now)" if one.candidate.present else " (take)" if one.candidate == report.take else ""
    gain = "-" if one.gain is None else f"{one.gain.median:.3f}"
    return (
        one.candidate.value + mark,
        one.ended,
        _speed(one.tokens_per_s),
        _span(one.tokens_per_s, 0),
        "-" if one.peak_memory_bytes is None else bytes_text(one.peak_memory_bytes.median),
        gain,
        _span(one.gain, 3),
        one.gain_told,
    )


def _speed(value: Estimate | None) -> str:
    return "-" if value is None else f"{value.median:,.0f}"


def _span(value: Estimate | None, digits: int) -> str:
    if value is None or value.low is None or value.high is None:
        return "-"
    return f"{value.low:,.{digits}f} - {value.high:,.{digits}f}"
