"""`numeric.non_finite`: the step and rank at which a loss or gradient was first NaN or infinite.

Only a rank's own loss identifies it: the reduced loss and gradient are NaN on every rank.
"""

from collections.abc import Sequence
from math import isfinite, nan
from typing import Any

from msgspec import Struct

from diagnostics.analysis.printed_steps import non_finite_to_the_end, printed_steps
from diagnostics.analysis.run_records import Figures, read
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract import findings as level
from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.files import patterns_beside
from diagnostics.contract.findings import CITED, Cost, EvidenceItem, Facts, Finding, Where, confirmed
from diagnostics.evidence.metrics import Metrics
from diagnostics.evidence.model import CLAUSE, Evidence, LogFact, RankError, RunEvidence, shortened

_TEXTS = Texts(__file__)
RISING = 1.5  # Ratio of the loss to its minimum from which it counts as having risen before it became non-finite.
_TEXT = patterns_beside(__file__, "patterns")
"""Compiled patterns, documented in the table."""


class Settings(Struct, frozen=True):
    """Properties of a run's configuration and losses that select the remedies."""

    float16: bool = False
    unclipped: bool = False
    rate: float | None = None
    """Learning rate of dtk's optimizer."""
    rose: bool = False
    """Whether the loss had risen before it became non-finite."""

    def remedy_rows(self, ranks: Sequence[int] = ()) -> list[str]:
        """Return the rows of the usual remedies. If only some ranks are affected, their data or device comes first."""
        rate = [] if self.rate is None else ["rose"] if self.rose else [] if ranks else ["rate"]
        rows = [*(["own"] if ranks else []), *(["float16"] if self.float16 else [])]
        rows += [*(["unclipped"] if self.unclipped else []), *rate]
        return rows or ["default"]


class _Event(Struct, frozen=True):
    rank: int
    step: int
    fields: dict[str, Any]


def _facts(row: str, settings: Settings, step: int | None = None, **figures: object) -> Facts:
    detect = "detect_early" if step is None else "detect"
    half = (settings.rate or 0.0) / 2
    return _TEXTS.facts([row, *settings.remedy_rows(), detect], step=step, half_rate=half, **figures)


def decide(figures: Figures) -> Finding:
    """Decide from the most specific evidence: own losses, gradients, anomaly detection, global figures, checks, log."""
    evidence, metrics, run = figures.evidence, figures.metrics, figures.evidence.run
    if run is not None:
        losses, norms = _first_events(run, "loss"), _first_events(run, "grad_norm")
        if losses and (not norms or losses[0].step <= norms[0].step):
            return _by_losses(figures, run, losses)
        if norms:
            return _by_gradient(figures, run, norms)
    if raised := [error for error in evidence.errors if _TEXT["anomaly"].search(error.message)]:
        return _by_anomaly(raised)
    scaled = run is not None and run.get("precision.initial_loss_scale") is not None
    bad = [bad for bad in (metrics.bad.values() if metrics else ()) if not (scaled and bad.figure == "grad_norm")]
    if run is not None and bad:
        first = min(bad, key=lambda bad: (bad.step, bad.line, bad.figure != "loss"))
        file = evidence.relative(RunPaths(run.root).metrics)
        item = EvidenceItem("metrics", file, f"{first.figure} {first.value}", first.line)
        since = "" if first.step_before is None else _TEXTS.phrase("since", step=first.step_before)
        settings, cost = _settings(run, metrics), _cost(first.step, metrics)
        facts = _facts("recorded", settings, first.step, bad=first, since=since)
        return confirmed(facts=facts, confidence=level.CERTAIN, step=first.step, cost=cost, evidence=(item,))
    if checked := [error for error in evidence.errors if _TEXT["checked"].search(f"{error.type} {error.message}")]:
        owns = sorted({int(own["rank"]) for error in checked if (own := _TEXT["own"].search(error.message))})
        ranks = tuple(owns) if len(owns) != evidence.world_size else ()
        victims = tuple(sorted({error.rank for error in checked if error.rank is not None} - {*ranks}))
        message, items = shortened(checked[0].message.partition("\n")[0], CLAUSE).rstrip(". "), _items(checked)
        facts = _facts("checked_own" if ranks else "checked", Settings(), message=message, errors=len(checked))
        step, sure = checked[0].step, level.PROBABLE
        return confirmed(facts=facts, confidence=sure, step=step, evidence=items, victims=victims, ranks=ranks)
    if metrics is None and (finding := _by_log(evidence)):
        return finding
    if metrics is not None and metrics.records:
        return _TEXTS.ruled_out(count=metrics.records)
    return _TEXTS.undecided("no_record" if run is not None else "open")


def _first_events(run: RunEvidence, figure: str) -> list[_Event]:
    """Return the first event of each rank about this figure, limited to the earliest step."""
    first: dict[int, _Event] = {}
    for rank, events in sorted(run.events.items()):
        for event in events:
            step = event.get("step")
            if event.get("name") == "non_finite" and event.get("figure") == figure and isinstance(step, int):
                first.setdefault(rank, _Event(rank, step, event))
    earliest = min((event.step for event in first.values()), default=0)
    return [event for event in first.values() if event.step == earliest]


def _by_losses(figures: Figures, run: RunEvidence, first: list[_Event]) -> Finding:
    """Blame the ranks whose own losses were non-finite first, unless all ranks were at once."""
    metrics, step, ranks = figures.metrics, first[0].step, tuple(event.rank for event in first)
    world = figures.evidence.world_size or len(run.events)
    alone = len(ranks) < len(run.events) or world == 1  # No other rank's loss was non-finite.
    silent = len(set(range(min(world, 1_000_000))) - set(run.events))
    is_own = alone and world > 1
    scaled = run.get("precision.initial_loss_scale") is not None
    passing = scaled and metrics is not None and metrics.recovered
    settings, value = _settings(run, metrics), str(first[0].fields.get("value"))
    rows = ["alone" if is_own else "single" if alone else "all", *(["silent"] if alone and silent else [])]
    rows += [*(["recovered"] if passing else []), *settings.remedy_rows(ranks if is_own else ()), "detect"]
    shown = {"own": ranks, "world": world, "silent": silent, "suspects": ranks[:CITED]}
    return confirmed(
        facts=_TEXTS.facts(rows, value=value, step=step, half_rate=(settings.rate or 0.0) / 2, **shown),
        confidence=level.SUSPECTED if passing else level.PROBABLE if silent else level.STATED,
        ranks=ranks if alone else (),
        victims=tuple(rank for rank in sorted(run.events) if rank not in ranks) if alone else (),
        step=step,
        cost=_cost(step, metrics),
        evidence=_event_items(figures, run, first),
    )


def _by_gradient(figures: Figures, run: RunEvidence, first: list[_Event]) -> Finding:
    """Blame no rank: the reduced gradient is the same on all ranks."""
    named = [event.fields for event in first if event.fields.get("parameter")]
    logged = named or [event.fields for event in first if event.fields.get("parameters_seen")] or [{}]
    counts = [logged[0].get(f"parameters_{what}") for what in ("affected", "seen")]
    affected, seen = (count if isinstance(count, int) else 0 for count in counts)
    parameter = logged[0].get("parameter")
    row = "first_in" if parameter else "sum_overflowed" if seen else "not_logged"
    where = _TEXTS.phrase(row, parameter=parameter, affected=affected, seen=seen)
    ranks = (0,) if (figures.evidence.world_size or len(run.events)) == 1 else ()
    step, value, settings = first[0].step, str(first[0].fields.get("value")), _settings(run, figures.metrics)
    facts = _facts("gradient" if ranks else "reduced_gradient", settings, step, value=value, where=where)
    items = _event_items(figures, run, first)
    cost = _cost(step, figures.metrics)
    return confirmed(facts=facts, confidence=level.SEEN, step=step, evidence=items, ranks=ranks, cost=cost)


def _by_anomaly(raised: list[RankError]) -> Finding:
    error = raised[0]
    match = _TEXT["anomaly"].search(error.message)
    function = match["function"] if match else "a function"
    ranks = tuple(sorted({error.rank for error in raised if error.rank is not None}))
    own = [frame for frame in error.frames if "/torch/" not in frame.file and "site-packages" not in frame.file]
    does = _TEXTS.phrase("backward", function=function)
    where = tuple(Where(error.rank, at.file, at.line, at.function, does) for at in own[:1])
    facts = _TEXTS.facts("anomaly", function=function, errors=len(raised))
    return confirmed(
        facts=facts, confidence=level.SEEN, step=error.step, evidence=_items(raised), ranks=ranks, where=where
    )


def _by_log(evidence: Evidence) -> Finding | None:
    """Blame no rank: usually only one rank prints, and a reduced loss is NaN on all ranks."""
    printed = [fact for fact in evidence.facts if fact.kind == "non_finite_loss"]
    if not printed:
        cases = [(log, case) for log in printed_steps(evidence).logs if (case := non_finite_to_the_end(log))]
        if not cases:
            return None
        log, case = max(cases, key=lambda pair: pair[1].lasting)
        place = _TEXTS.phrase("in_log", at=f"{log.file}:{case.line}")
        item = EvidenceItem("log", log.file, _TEXTS.phrase("onwards"), case.line)
        facts = _facts("printed", Settings(), figure=case.figure, value="non-finite", place=place, lines=case.count)
        return confirmed(facts=facts, confidence=level.LIKELY if case.lasting else level.SUSPECTED, evidence=(item,))
    steps = {id(fact): fact.fields.get("step", fact.fields.get("bar")) for fact in printed}
    first = min(printed, key=lambda fact: (steps[id(fact)] is None, steps[id(fact)] or 0, fact.file, fact.line))
    lines = sum(fact.fields.get("count", 1) for fact in printed)
    figure, value, at = first.fields["figure"], first.fields["value"], f"{first.file}:{first.line}"
    step = steps[id(first)]
    place = _TEXTS.phrase("in_log" if step is None else "at_step", at=at, step=step)
    own, finite = _first_alone(evidence, printed, nan if step is None else step)
    rows = [*(["printed_own", "own"] if own else ["printed"]), "default", "detect_early" if step is None else "detect"]
    seen = {"figure": figure, "value": value, "place": place, "lines": lines, "suspects": own[:CITED]}
    facts = _TEXTS.facts(rows, step=step, finite=finite, **seen)
    items = tuple(fact.quoted() for fact in printed[:CITED])
    at_first = [fact for fact in printed if steps[id(fact)] == step and "local" in str(fact.fields["figure"])]
    ranks = own or tuple(sorted({fact.rank for fact in at_first if fact.rank is not None}))
    whole = len(ranks) == evidence.world_size
    return confirmed(facts=facts, confidence=level.LIKELY, step=step, evidence=items, ranks=() if whole else ranks)


def _first_alone(evidence: Evidence, printed: Sequence[LogFact], step: float) -> tuple[tuple[int, ...], int]:
    """Return the ranks whose own loss alone was not finite in the first such step, and how many others' was.

    A reduced loss is NaN on all ranks at once. The ranks must print each step once, as the number of their lines shows.
    """
    began = {f.rank: f.fields for f in printed if f.fields["figure"] == "loss" and f.fields.get("step") == step}
    series = (each for f in evidence.facts if f.kind == "steps" for each in f.fields["steps"].series.values())
    rows = [row for each in series for row in zip(each.step, each.loss, strict=True) if row[0] >= step]
    finite, steps = sum(at == step and isfinite(loss) for at, loss in rows), len({at for at, _ in rows})
    is_own = finite > 0 and None not in began and all(each.get("count", 1) == steps for each in began.values())
    return (tuple(sorted(rank for rank in began if rank is not None)), finite) if is_own else ((), 0)


def _items(errors: Sequence[RankError]) -> tuple[EvidenceItem, ...]:
    return tuple(EvidenceItem("error", e.file, shortened(e.message), e.line or None) for e in errors[:CITED])


def _event_items(figures: Figures, run: RunEvidence, events: Sequence[_Event]) -> tuple[EvidenceItem, ...]:
    items = []
    for event in events[:CITED]:
        row = "event_parameter" if event.fields.get("parameter") else "event"
        file = figures.evidence.relative(RunPaths(run.root).events(event.rank))
        items.append(EvidenceItem("events", file, _TEXTS.phrase(row, step=event.step, fields=event.fields)))
    return tuple(items)


def _cost(step: int, metrics: Metrics | None) -> Cost | None:
    """Return the cost: every step from the first non-finite one on is lost."""
    if metrics is None or metrics.last_step is None or metrics.last_step < step:
        return None
    return Cost(float(metrics.last_step - step + 1), "steps lost")


def _settings(run: RunEvidence, metrics: Metrics | None) -> Settings:
    rate = run.get("optimizer.lr")
    return Settings(
        float16=run.get("precision.compute_dtype") == "float16",
        unclipped=run.get("train.clip_norm", 0) is None and not run.get("optimizer.in_backward"),
        rate=rate if isinstance(rate, float) else None,
        rose=metrics is not None and metrics.last_finite is not None and metrics.last_finite > RISING * metrics.lowest,
    )


CAUSE = declared(__file__, read, decide)
