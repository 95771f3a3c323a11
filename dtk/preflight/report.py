"""The result of a preflight: its answer, its document, and JSON for programs."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from diagnostics.contract.formatting import counted
from diagnostics.report import diagnosis, jsonform
from diagnostics.report import document as doc
from dtk.preflight.run import Preflight
from dtk.preflight.what_if import Tried

SCHEMA = "dtk.preflight/1"
ASSUMED = (
    "When the calls of all ranks are matched, all of them complete: the n-th collective of a group matches the n-th of "
    "its other members in operation, size, dtype, ReduceOp and root, every send has its receive, and both ends of a "
    "transfer expect the same number of bytes."
)
LIMITS = (
    "Not covered: what happens after these steps, branches that only other data takes, and what a machine does to a "
    "run: a killed process, memory that runs out, a network that breaks."
)


def answer(result: Preflight) -> str:
    """Return one line: whether the job finishes, and the basis of the answer."""
    world_size, simulated = result.job.world_size, result.simulated
    which = "all simulated" if simulated == world_size else f"{simulated} of them simulated, one of each class"
    steps = counted(result.steps, "step") if result.steps else "to its own end"
    ranks = counted(world_size, "rank")
    basis = f"{ranks}, {which}; {steps}, {result.verdict.outcome.events:,} calls and waits; {result.seconds:.1f} s"
    if result.verdict.ends:
        return f"would finish: every rank ends by itself ({basis})"
    return f"{'would hang' if result.verdict.hangs else 'would fail'}: {result.verdict.stands} ({basis})"


def document(result: Preflight, *, brief: bool = False, page: str = "") -> doc.Document:
    """Return the document; arguments as in the diagnosis's document, which it includes if the job would not finish."""
    what_if = _what_if(result.tried) if result.tried else ()
    if result.verdict.report is None:
        fields = tuple(doc.Field(*field) for field in (("page", page), ("note", result.job.note)) if field[1])
        source = doc.on_page(doc.Paragraph(doc.Span(result.job.source, "code")))
        rows = (
            ("ranks", f"{result.job.world_size:,}"),
            ("ranks simulated", f"{result.simulated:,}"),
            ("steps", str(result.steps) if result.steps else "to its own end"),
            ("calls and waits of all ranks", f"{result.verdict.outcome.events:,}"),
            ("seconds", f"{result.seconds:.1f}"),
        )
        table = doc.Table(("what", "how much"), rows, 1)
        proven = doc.Section("What was proven", (doc.Paragraph(ASSUMED), table, doc.Paragraph(LIMITS)))
        changed = doc.Section("What was changed", (doc.Paragraph(result.job.note),)) if result.job.note else None
        return doc.Document(
            title="Preflight: would finish",
            badge=("WOULD END", "good"),
            answer=answer(result),
            lead=doc.present(source, doc.Only(("terminal", "markdown"), (doc.Fields(fields),))),
            blocks=(doc.Only(diagnosis.PAGES, doc.present(proven, changed)), *what_if),
            footer="Made by dtk preflight. The same as data: dtk preflight with --json.",
        )
    made = diagnosis.document(result.verdict.report, brief=brief, page=page)
    note = doc.Fields((doc.Field("note", result.job.note),)) if result.job.note else None
    prelude = doc.present(doc.Paragraph(doc.Span(answer(result), "strong")), note)
    return replace(made, prelude=prelude, blocks=(*made.blocks, *what_if))


def as_json(result: Preflight) -> dict[str, Any]:
    """Return plain values; `report` is that of `dtk diagnose --json`, null if every rank finishes."""
    report = result.verdict.report
    return {
        "schema": SCHEMA,
        "ends": result.verdict.ends,
        "hangs": result.verdict.hangs,
        "source": result.job.source,
        "world_size": result.job.world_size,
        "simulated_ranks": result.simulated,
        "steps": result.steps,
        "events": result.verdict.outcome.events,
        "seconds": round(result.seconds, 3),
        "stands": result.verdict.stands,
        "what_if": [
            {
                "failure": tried.failure.title,
                "hangs": None if tried.skipped else tried.hangs,
                **{name: getattr(tried, name) for name in ("rank", "cause", "where", "stands", "skipped")},
            }
            for tried in result.tried
        ],
        "report": None if report is None else jsonform.as_json(report),
    }


def _what_if(tried: tuple[Tried, ...]) -> tuple[doc.Block, ...]:
    rows = []
    for trial in tried:
        outcome = f"not tried: {trial.skipped}" if trial.skipped else "would hang" if trial.hangs else "would finish"
        call, _, place = trial.where.partition(" at ")
        with suppress(ValueError):
            place = str(Path(place).relative_to(Path.cwd()))
        rows.append((trial.failure.title, outcome, trial.cause, f"{call} at {place}" if place else ""))
    header = (f"if on rank {tried[0].rank}", "the job", "cause", "where the others wait")
    return (doc.Section(f"What if, on rank {tried[0].rank} alone", (doc.Table(header, tuple(rows), len(header)),)),)
