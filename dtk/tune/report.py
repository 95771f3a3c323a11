"""The report of `dtk tune`: its document, and JSON for programs. Decides nothing."""

from typing import Any

from msgspec import to_builtins

from diagnostics.contract.formatting import bytes_text, counted
from diagnostics.contract.invocation import command
from diagnostics.report.document import Document, Field, Fields, Section, Span, present, table
from dtk.compare.statistics import METHOD
from dtk.tune.model import TuneReport

SCHEMA = "dtk.tune/1"


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
