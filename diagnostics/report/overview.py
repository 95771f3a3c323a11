"""The report as a whole: headline, main figures, the families of causes that it is about, and what is undecided."""

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from diagnostics.causes.registry import FAMILIES, by_id, family, traits
from diagnostics.contract.findings import Finding, Outcome, Status, text_of
from diagnostics.contract.formatting import bytes_text, counted, joined, seconds_text
from diagnostics.contract.grouping import grouped
from diagnostics.report import document as doc, measures, symptoms
from diagnostics.report.measures import share_text
from diagnostics.report.model import Decided, Report
from diagnostics.report.wording import texts_beside
from diagnostics.tree.outcome import account_of

_said = texts_beside(__file__)
OUTCOMES = {name: name.replace("_", " ").upper() for name in get_args(Outcome)} | {"oom": "OUT OF MEMORY"}


def word(outcome: Outcome, root: str = "") -> str:
    """Return an outcome as it is printed, with its cause: a job that was stopped from outside did not crash."""
    is_end = root in by_id() and by_id()[root].tells_end
    return "STOPPED" if outcome == "crashed" and is_end else OUTCOMES[outcome]


def headline(report: Report, *, figures: bool = True) -> str:
    """Return the title of the first root cause, or a statement why there is none, on request with its figures."""
    if report.root_causes:
        first = report.root_causes[0].cause
        unnoticed = report.outcome == "diverged" and first in by_id() and by_id()[first].outcome == "hung"
        return _said("unnoticed", title=report.title(first)) if unnoticed else report.title(first)
    if report.healthy:
        account = f"; {report.statement}" if report.statement else ""
        return _said("healthy", **{"ruled_out": 0, "undecided": 0, **count(report)}, account=account)
    if report.waiting is not None:
        return symptoms.headline(report.waiting)
    suspected = [decided.finding for decided in report.findings if decided.finding.suspected]
    if {suspicion.cause for suspicion in report.suspicions}.difference(finding.cause for finding in suspected):
        return _said("out_of_memory")
    if len(suspected) == 1 and suspected[0].cause in by_id() and by_id()[suspected[0].cause].names_outcome:
        return text_of(suspected[0]).summary.rstrip(".")
    if suspected:
        return _said("one_suspected" if len(suspected) == 1 else "suspected", count=len(suspected))
    if report.statement:
        return f"{report.statement}: {report.figures}" if report.figures and figures else report.statement
    if (open_one := first_open(report)) is not None:
        return text_of(open_one).claim
    return _said("quoted" if report.notes else "too_little")


def first_open(report: Report) -> Finding | None:
    """Return the first undecided finding that has evidence and states what would decide it; None if there is none."""
    open_ones = (decided.finding for decided in report.findings if decided.finding.status == "undecided")
    return next((finding for finding in open_ones if finding.evidence and text_of(finding).missing), None)


def count(report: Report) -> Counter[Status]:
    """Return the number of findings of each status."""
    return Counter(decided.finding.verdict for decided in report.findings)


def families(report: Report) -> frozenset[str]:
    """Return the families that the report is about.

    They are those of the root causes, else of the suspicions, else what the evidence was recorded for. Undecided
    causes of other families are unrelated to the problem.
    """
    suspicions = [decided.finding for decided in report.findings if decided.finding.suspected]
    named = {family(finding.cause) for finding in report.root_causes or suspicions}
    if named or report.healthy:
        return frozenset(named)
    kinds = {coverage.kind for coverage in report.coverage}
    recorded_for = (name for name, traits in FAMILIES.items() if kinds & traits.recorded_for)
    return frozenset((next(recorded_for, next(iter(FAMILIES))),))


def undecided(report: Report) -> tuple[list[Decided], list[Decided]]:
    """Return the undecided causes: those of the families that the report is about, and all others."""
    kinds, open_ones = families(report), [each for each in report.findings if each.finding.status == "undecided"]
    related = [decided for decided in open_ones if family(decided.finding.cause) in kinds]
    return related, [decided for decided in open_ones if family(decided.finding.cause) not in kinds]


def others_text(others: Sequence[Decided]) -> str:
    """Return `37 causes of memory, numerics and speed could not be decided`; empty without causes."""
    kinds = sorted({traits(decided.finding.cause).title for decided in others})
    return f"{counted(len(others), 'cause')} of {joined(kinds)} could not be decided" if others else ""


def missing(causes: Sequence[Decided], stated: str = "") -> list[tuple[str, list[str]]]:
    """Return how to record the missing evidence, with the causes it would decide.

    What the cause `stated` by the report lacks is first, then what decides the most causes.
    """
    texts = ((text_of(decided.finding).missing, decided.finding.cause) for decided in causes)
    table = grouped((text, cause) for text, cause in texts if text)
    return sorted(table.items(), key=lambda item: (stated not in item[1], -len(item[1]), item[0]))


def cards(report: Report) -> doc.Cards | None:
    """Return the recorded figures of speed, step time and memory, side by side; None if there are none."""
    run, account = measures.run_figures(report.measures), account_of(report.measures)
    step = measures.breakdown(report.measures)
    listed: list[doc.Card] = []

    def add(figure: str, caption: str) -> None:
        listed.append(doc.Card(figure, (doc.Span(caption, "soft"),)))

    if run.tokens_per_s is not None:
        add(f"{run.tokens_per_s:,.0f}", f"{run.speed_unit[:20]}s/s, all ranks")
    if run.step_time_s is not None:
        add(seconds_text(run.step_time_s), "per step, median")
    if account is not None and account.overlap is not None:
        add(f"{account.overlap:.0%}", "of the communication overlaps compute")
    if step is not None and account is not None:
        add(seconds_text(step.exposed_ms / 1e3), "exposed communication per step, mean over ranks")
        add(f"{account.idle:.0%}", "of the step without any operation")
    if peaks := measures.comparable(measures.memory(report.measures)):
        fullest = max(peaks, key=lambda rank: peaks[rank].peak_bytes)
        peak_bytes, over_time = peaks[fullest].peak_bytes, peaks[fullest].over_time
        capacity = over_time.capacity_bytes if over_time is not None else run.device_memory_bytes
        of = f" of {bytes_text(capacity)}{share_text(peak_bytes, capacity)}" if capacity else ""
        what = measures.of_what(over_time)
        add(bytes_text(peak_bytes), f"peak of {what}{of}, {peaks[fullest].name(fullest)}")
    elif run.peak_memory_bytes is not None:
        add(bytes_text(run.peak_memory_bytes), "peak memory of rank 0")
    if run.mfu is not None:
        add(f"{run.mfu:.1%}", "MFU")
    return doc.Cards(tuple(listed)) if listed else None
