"""`numeric.rank_divergence`: replicas that should hold the same parameters differ.

A dtk run compares them bit by bit every `record.replica_hash_every` steps; this module reads the result.
"""

from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, convert

from diagnostics.analysis.metrics_series import Figures, read
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.findings import CITED, STATED, Cost, EvidenceItem, Finding, FormattedFacts, Group, confirmed
from diagnostics.evidence.model import Evidence, RunEvidence
from diagnostics.evidence.values import Rank

_TEXTS = Texts(__file__)


class Difference(Struct, frozen=True):
    """A comparison in which ranks differed, as recorded by a rank."""

    step: int
    ranks: tuple[Rank, ...]
    """Ranks that differ from the majority."""
    group: tuple[Rank, ...]
    dimension: str | None = None
    """`tp` if the ranks are those of a tensor-parallel group."""
    parameter: str | None = None
    parameters_affected: int = 0
    parameters_seen: int = 0
    tie: bool = False


def _facts(first: Difference, is_tie: bool, equal_step: int | None) -> FormattedFacts:
    since = _TEXTS.phrase("not_later" if equal_step is None else "between", step=first.step, equal=equal_step)
    place = _TEXTS.phrase("place", event=first) if first.parameter else ""
    return _TEXTS.facts("tie" if is_tie else "default", since=since, place=place)


def decide(figures: Figures) -> Finding:
    """Decide from the run's own comparison of its data-parallel replicas."""
    return compared(figures, _facts, lambda difference: difference.dimension != "tp", _without)


def compared(
    figures: Figures,
    facts: Callable[[Difference, bool, int | None], FormattedFacts],
    of: Callable[[Difference], bool],
    without: Callable[[Evidence, RunEvidence], Finding | None],
) -> Finding:
    """Return the finding from the run's own comparison of ranks that should have the same parameters.

    `facts` describes the first difference, whether it is a tie, and the last step at which the ranks were equal; `of`
    selects the differences of this cause; `without` returns a finding if there is nothing to compare.
    """
    evidence, run = figures.evidence, figures.evidence.run
    if run is None:
        return _TEXTS.undecided("open")
    drifted: list[tuple[int, Difference]] = []
    for rank, events in sorted(run.events.items()):
        for event in events:
            with suppress(ValueError):  # An invalid event is skipped.
                if event.get("name") == "replica_divergence" and of(difference := convert(event, Difference)):
                    drifted.append((rank, difference))
    if drifted:
        return _drifted(evidence, run, drifted, facts)
    if (nothing := without(evidence, run)) is not None:
        return nothing
    if equal := _equal_steps(run):
        return _TEXTS.ruled_out("equal", last=max(equal), count=len(equal))
    if run.get("record.level") == "off" or not run.get("record.replica_hash_every", 0):
        return _TEXTS.undecided("not_compared")
    return _TEXTS.undecided("too_early")


def _without(evidence: Evidence, run: RunEvidence) -> Finding | None:
    """Rule the cause out if no two ranks hold the same parameters; otherwise return None."""
    if (traits := evidence.traits).is_known and (traits.replicated_over is None or evidence.world_size == 1):
        return _TEXTS.ruled_out("no_replicas", name=traits.name)
    return None


def _equal_steps(run: RunEvidence) -> list[int]:
    events = (event for of_rank in run.events.values() for event in of_rank if event.get("name") == "replicas_equal")
    return [event["step"] for event in events if isinstance(event.get("step"), int)]


def _drifted(
    evidence: Evidence,
    run: RunEvidence,
    drifted: list[tuple[int, Difference]],
    facts: Callable[[Difference, bool, int | None], FormattedFacts],
) -> Finding:
    step = min(difference.step for _, difference in drifted)
    first = [(rank, difference) for rank, difference in drifted if difference.step == step]
    minority = tuple(sorted({rank for _, difference in first for rank in difference.ranks}))
    group = tuple(sorted({rank for _, difference in first for rank in difference.group}))
    named = next((seen for rank, seen in first if rank in minority and seen.parameter), first[0][1])
    equal_step = max((equal for equal in _equal_steps(run) if equal < step), default=None)
    last = run.status.step if run.status else None
    items = []
    for rank, difference in first[:CITED]:
        file = evidence.relative(RunPaths(run.root).events(rank))
        row = "seen_parameter" if difference.parameter else "seen"
        items.append(EvidenceItem("events", file, _TEXTS.phrase(row, step=step, event=difference)))
    return confirmed(
        facts=facts(named, any(difference.tie for _, difference in first), equal_step),
        confidence=STATED,
        ranks=minority,
        group=Group("replicas", group, str(_TEXTS.phrase("group"))),
        step=step,
        cost=Cost(float(last - step + 1), "steps lost") if isinstance(last, int) and last >= step else None,
        evidence=tuple(items),
    )


CAUSE = declared(__file__, read, decide)
