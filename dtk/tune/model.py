"""The result of `dtk tune` as typed values, as a document and as JSON for programs. Runs nothing, prints nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import to_builtins

from diagnostics.contract.formatting import bytes_text, command, counted
from diagnostics.report.document import Document, Field, Fields, Section, Span, present, table
from dtk.compare.statistics import METHOD, Estimate, estimate
from dtk.tune.candidates import Candidate
from dtk.tune.probe import Probe, outcome_text

NO_GAIN = "no gain distinguishable from noise"
SCHEMA = "dtk.tune/1"


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate."""

    candidate: Candidate
    ended: str
    """`finished`, or how its first unfinished probe ended."""
    out_of_memory: bool
    tokens_per_s: Estimate | None
    peak_memory_bytes: Estimate | None
    """Peak of the rank with the most memory."""
    gain: Estimate | None
    """Ratio of tokens/s to the reference in each pair of probes; None for the reference itself."""
    runs: tuple[str, ...]
    """Run folders, if they are kept."""

    @property
    def finished(self) -> bool:
        """Whether every probe finished."""
        return self.ended == "finished"

    @property
    def verdict(self) -> str:
        """Assessment of the candidate against the reference."""
        if self.gain is None:
            return ""
        if self.gain.low is None:
            return "too few repeats for an interval"
        if self.gain.holds(1.0):
            return NO_GAIN if self.gain.median >= 1 else "no loss distinguishable from noise"
        return "faster" if self.gain.median > 1 else "slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneReport:
    """The complete result."""

    topic: str
    job: tuple[str, ...]
    """The overrides as typed."""
    terms: tuple[str, ...]
    """Overrides that made the runs short."""
    world_size: int
    device: str
    rows: tuple[Row, ...]
    reference: Candidate | None
    """Candidate that gains refer to."""
    take: Candidate | None
    """Candidate to use; None keeps the present value."""
    verdict: str
    notes: tuple[str, ...] = ()
    kept: str | None = None
    """Folder of the probes' run folders, where they are kept."""
    interrupted: bool = False
    """Whether Ctrl-C or another signal ended the search."""
    failure: str = ""
    """The probe that failed for a reason other than memory and thereby ended the search."""
    seconds: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether the search has a result."""
        return not self.failure and any(row.finished for row in self.rows)


def row_of(candidate: Candidate, probes: Mapping[int, Probe], reference: Mapping[int, Probe] | None) -> Row:
    """Return the figures of one candidate; gains are over the candidate whose probes are `reference`."""
    bad = next((probe for probe in probes.values() if not probe.fits), None)
    speeds, before = _speeds(probes), _speeds(reference or {})
    peaks = [probe.peak_memory_bytes for probe in probes.values() if probe.fits and probe.peak_memory_bytes]
    common = sorted(speeds.keys() & before.keys())
    return Row(
        candidate,
        "finished" if bad is None else outcome_text(bad),
        bad is not None and bad.out_of_memory,
        estimate(list(speeds.values())) if speeds else None,
        estimate(peaks) if peaks else None,
        estimate([speeds[n] / before[n] for n in common]) if common else None,
        tuple(str(probe.run) for probe in probes.values()),
    )


def _speeds(probes: Mapping[int, Probe]) -> dict[int, float]:
    return {n: probe.tokens_per_s for n, probe in probes.items() if probe.fits and probe.tokens_per_s}


def clearly_fastest(rows: Sequence[Row]) -> Row | None:
    """Return the fastest of the rows that are faster than the reference beyond noise."""
    faster = [row for row in rows if row.finished and row.verdict == "faster"]
    return max(faster, key=lambda row: row.gain.median if row.gain else 0.0, default=None)


def as_json(report: TuneReport) -> dict[str, Any]:
    """Return plain values: the fields of the report, with what to type for each candidate."""
    plain = to_builtins(report)
    del plain["rows"], plain["interrupted"]
    candidates = []
    for row in report.rows:
        values = to_builtins(row)
        chosen = {"override": row.candidate.override, "present": values.pop("candidate")["present"]}
        candidates.append({**chosen, **values, "verdict": row.verdict or None})
    return {
        "schema": SCHEMA,
        **plain,
        "take": None if report.take is None else report.take.override,
        "reference": None if report.reference is None else report.reference.override,
        "candidates": candidates,
        "interval": METHOD,
        "failure": report.failure or None,
        "seconds": round(report.seconds, 3),
    }


def document(report: TuneReport) -> Document:
    """Return the document of a search."""
    job, ranks = " ".join(report.job), f"{counted(report.world_size, 'rank')} on {report.device}"
    lead = [Field("job", f"{job}; {ranks}" if job else ranks)]
    if report.take is not None:
        lead.append(Field("command", command("run", *report.job, report.take.override)))
    probes = f"separate runs with {' '.join(report.terms)}; {report.seconds:.0f} s in total"
    about = [Field("interval", METHOD, "soft"), Field("probes", probes, "soft")]
    about += [Field("note", note, "warn") for note in report.notes]
    if report.kept is not None:
        about.append(Field("kept", f"{report.kept}; {command('ls', report.kept)}"))
    return Document(
        title=f"Tune: {report.topic}",
        answer=Span(report.verdict, "good" if report.take is not None else "strong"),
        lead=(Fields(tuple(lead)),),
        blocks=present(
            Section("Candidates", (table(_rows(report)),)) if report.rows else None,
            Section("How it was measured", (Fields(tuple(about)),)),
        ),
    )


def _rows(report: TuneReport) -> list[tuple[str, ...]]:
    over = "" if report.reference is None else f"over {report.reference.value}"
    rows: list[tuple[str, ...]] = [("value", "ended", "tokens/s", "interval", "peak memory", over, "interval", "")]
    for row in report.rows:
        mark = " (configured)" if row.candidate.present else " (recommended)" if row.candidate == report.take else ""
        rows.append(
            (
                row.candidate.value + mark,
                row.ended,
                "-" if row.tokens_per_s is None else f"{row.tokens_per_s.median:,.0f}",
                (row.tokens_per_s and row.tokens_per_s.span("{:,.0f}".format)) or "-",
                "-" if row.peak_memory_bytes is None else bytes_text(row.peak_memory_bytes.median),
                "-" if row.gain is None else f"{row.gain.median:.3f}",
                (row.gain and row.gain.span("{:.3f}".format)) or "-",
                row.verdict,
            )
        )
    return rows
