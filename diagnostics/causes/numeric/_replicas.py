"""Causes decided by a dtk run's own comparison, bit by bit, of ranks that should hold the same parameters.

It compares them every `record.replica_hash_every` steps; each difference is an event of every rank.
"""

from contextlib import suppress

from msgspec import Struct, convert

from diagnostics.analysis.run_records import Figures, layout, read
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import CITED, STATED, Cost, EvidenceItem, Finding, Group, confirmed
from diagnostics.evidence.model import Evidence, Rank, RunEvidence

_TEXTS = Texts(__file__)
INPUTS = "inputs"  # Name of a step's samples among the parameters that the run compares.


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


def replica_cause(file: str, *, over_tp: bool = False) -> Cause[Figures]:
    """Return the cause of data-parallel replicas that differ, or of the ranks of tensor-parallel groups.

    Its texts have the rows `default` and, of groups, `inputs` (the samples differ), each with another one for a tie;
    `place` and `unnamed` (the parameter), `at` and `since` (when), `none` (no two ranks hold the same parameters).
    """
    texts = Texts(file)

    def decide(figures: Figures) -> Finding:
        evidence, run = figures.evidence, figures.evidence.run
        if run is None:
            return _TEXTS.undecided()
        differences: list[tuple[int, Difference]] = []
        for rank, events in sorted(run.events.items()):
            for event in events:
                with suppress(ValueError):  # An invalid event is skipped.
                    difference = convert(event, Difference) if event.get("name") == "replica_divergence" else None
                    if difference is not None and (difference.dimension == "tp") == over_tp:
                        differences.append((rank, difference))
        if differences:
            return _confirmed(evidence, run, differences, texts, over_tp)
        mesh, over = layout(evidence), evidence.traits.replicated_over
        alone = evidence.traits.is_known and (over is None or evidence.world_size == 1)
        if (mesh.tp if mesh is not None else run.get("parallel.tp", 1)) == 1 if over_tp else alone:
            return texts.ruled_out(name=evidence.traits.name)
        if equal := _equal_steps(run):
            return _TEXTS.ruled_out("equal", last=max(equal), count=len(equal))
        if run.get("record.level") == "off" or not run.get("record.replica_hash_every", 0):
            return _TEXTS.undecided("not_compared")
        return _TEXTS.undecided("too_early")

    return declared(file, read, decide)


def _equal_steps(run: RunEvidence) -> list[int]:
    events = (event for of_rank in run.events.values() for event in of_rank if event.get("name") == "replicas_equal")
    return [event["step"] for event in events if isinstance(event.get("step"), int)]


def _confirmed(
    evidence: Evidence, run: RunEvidence, differences: list[tuple[int, Difference]], texts: Texts, over_tp: bool
) -> Finding:
    step = min(difference.step for _, difference in differences)
    first = [(rank, difference) for rank, difference in differences if difference.step == step]
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
    since = texts.phrase("at" if equal_step is None else "since", step=step, equal=equal_step)
    place = texts.phrase("place" if named.parameter else "unnamed", event=named)
    row = "inputs" if over_tp and named.parameter == INPUTS else "default"
    row += "_tie" if any(difference.tie for _, difference in first) else ""
    return confirmed(
        facts=texts.facts(row, since=since, place=place),
        confidence=STATED,
        ranks=minority,
        group=Group("replicas", group, str(_TEXTS.phrase("group"))),
        step=step,
        cost=Cost(float(last - step + 1), "steps lost") if isinstance(last, int) and last >= step else None,
        evidence=tuple(items),
    )


CAUSE_OF = replica_cause
