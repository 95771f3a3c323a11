"""`numeric.rank_divergence`: replicas that should hold the same parameters and do not.

A dtk run compares them bit by bit every `record.replica_hash_every` steps; this reads what it found.
"""

from dataclasses import dataclass
from typing import Any, Literal

from diagnostics.analysis.metrics_series import Figures, read
from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.causes import Cause, ExplainedBy
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Group, Remedy, Text
from diagnostics.contract.formatting import ranks_spoken, sentence
from diagnostics.contract.strategy_traits import strategy_traits
from diagnostics.evidence.model import Evidence, RunEvidence

ID = "numeric.rank_divergence"
MAX_SHOWN = 8
"""Ranks that are listed, and events that are shown as evidence."""


@dataclass(frozen=True, slots=True)
class Drifted:
    """Replicas that differ."""

    is_tie: bool
    """As many ranks on either side."""
    equal_step: int | None
    """The last comparison before it that found no difference."""
    parameter: str
    """The first that differs; empty = not recorded."""
    affected: int
    seen: int

    def text(self, finding: Finding) -> Text:
        """Say who drifted when, and what to look for."""
        since = f"not later than step {finding.step}"
        if self.equal_step is not None:
            since = f"between step {self.equal_step} and step {finding.step}"
        place = f", first in {self.parameter} ({self.affected} of {self.seen} parameters)" if self.parameter else ""
        who = ranks_spoken(finding.ranks)
        summary = f"{who[0].upper()}{who[1:]} drifted apart from the other replicas {since}{place}."
        if self.is_tie:
            summary = (
                f"The replicas on {who} drifted apart {since}{place}; it is a tie, so neither can be called right."
            )
        code = Remedy(
            "code",
            "look for writes to parameters, optimizer steps or loads that only some ranks do (if rank == ...), and "
            "for gradients that are not reduced (no_sync left open, parameters outside DDP)",
            "replicas that get the same gradient and the same update stay equal bit for bit",
        )
        listed = "of either rank" if self.is_tie else f"of {who}"
        change = f"check the device {listed} (ECC errors: nvidia-smi -q -d ECC, dmesg)"
        members = finding.group.ranks if finding.group is not None else ()
        return Text(
            summary=summary,
            measured=f"{len(finding.ranks)} of {len(members)} replicas differ at step {finding.step}",
            remedies=(code, Remedy("environment", change, "bits can flip")),
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparisons that found no difference, or a strategy without replicas."""

    comparisons: int = 0
    last_step: int = 0
    strategy: str = ""
    """Under which there is nothing to compare."""

    def text(self, finding: Finding) -> Text:
        """Say what was compared."""
        if self.strategy:
            summary = f"Under strategy {self.strategy} no two ranks hold the same parameters."
            return Text(summary=summary, measured="no replicas")
        times = f"in all {self.comparisons} comparisons, last" if self.comparisons > 1 else "when they were compared,"
        summary = f"The replicas were equal bit for bit {times} after step {self.last_step}."
        return Text(summary=summary, measured=f"0 of {self.comparisons} comparisons differ")


_OPEN = {
    "no run": (
        "no record compares the parameters of the ranks",
        "a dtk run compares replicas by itself (record.replica_hash_every)",
    ),
    "off": ("replicas were not compared", "record=light record.replica_hash_every=100"),
    "too early": (
        "the run ended, or broke with NaN, before the replicas were compared",
        "record.replica_hash_every=10",
    ),
}


@dataclass(frozen=True, slots=True)
class NotCompared:
    """Replicas that were not compared."""

    why: Literal["no run", "off", "too early"]

    def text(self, finding: Finding) -> Text:
        """Say why not, and what would compare them."""
        what, missing = _OPEN[self.why]
        return Text(summary=f"{sentence(what)}.", missing=missing)


def decide(figures: Figures) -> list[Finding]:
    """Read what the run found when it compared its replicas."""
    evidence, run = figures.evidence, figures.evidence.run
    if run is None:
        return [Finding(cause=ID, status="undecided", facts=NotCompared("no run"))]
    drifted = [(rank, event) for rank, event in _events(run, "replica_divergence") if _is_whole(event)]
    if drifted:
        return [_drifted(evidence, run, drifted)]
    if equal := _equal_steps(run):
        return [Finding(cause=ID, status="ruled_out", facts=Compared(len(equal), max(equal)))]
    traits = strategy_traits(run.manifest, run.config)
    if traits.is_known and (traits.replicated_over is None or evidence.world_size == 1):
        return [Finding(cause=ID, status="ruled_out", facts=Compared(strategy=traits.name))]
    is_off = run.get("record.level") == "off" or not run.get("record.replica_hash_every", 0)
    return [Finding(cause=ID, status="undecided", facts=NotCompared("off" if is_off else "too early"))]


def _events(run: RunEvidence, name: str) -> list[tuple[int, dict[str, Any]]]:
    return [
        (rank, event) for rank, events in sorted(run.events.items()) for event in events if event.get("name") == name
    ]


def _equal_steps(run: RunEvidence) -> list[int]:
    return [event["step"] for _, event in _events(run, "replicas_equal") if isinstance(event.get("step"), int)]


def _is_whole(event: dict[str, Any]) -> bool:
    """Whether the event has the fields of one; it may be of a damaged file."""
    lists = (event.get("ranks"), event.get("group"))
    return isinstance(event.get("step"), int) and all(
        isinstance(one, list) and all(isinstance(rank, int) for rank in one) for one in lists
    )


def _drifted(evidence: Evidence, run: RunEvidence, drifted: list[tuple[int, dict[str, Any]]]) -> Finding:
    step = min(event["step"] for _, event in drifted)
    first = [(rank, event) for rank, event in drifted if event["step"] == step]
    minority = tuple(sorted({rank for _, event in first for rank in event["ranks"]}))
    group = tuple(sorted({rank for _, event in first for rank in event["group"]}))
    named = next((event for rank, event in first if rank in minority and event.get("parameter")), {})
    equal = max((equal for equal in _equal_steps(run) if equal < step), default=None)
    last = run.status.step if run.status else None
    items = []
    for rank, event in first[:MAX_SHOWN]:
        at = f", first in {event['parameter']}" if event.get("parameter") else ""
        file = evidence.relative(RunPaths(run.root).events(rank))
        items.append(EvidenceItem("events", file, f"replica_divergence at step {step}{at}"))
    return Finding(
        cause=ID,
        status="confirmed",
        facts=Drifted(
            any(event.get("tie") for _, event in first),
            equal,
            named.get("parameter", ""),
            named.get("parameters_affected", 0),
            named.get("parameters_seen", 0),
        ),
        confidence=0.97,
        ranks=minority,
        group=Group("replicas", group, "ranks that should hold the same parameters"),
        step=step,
        cost=Cost(float(last - step + 1), "steps lost") if isinstance(last, int) and last >= step else None,
        evidence=tuple(items),
    )


CAUSE = Cause(
    id=ID,
    title="replicas drifted apart",
    outcome="diverged",
    branch="numerics",
    facts=read,
    decide=decide,
    decided_from="replicas compared bit by bit every record.replica_hash_every steps",
    remedy="updates or reductions that only some ranks do; else the device's memory",
    explained_by=(
        ExplainedBy(("numeric.non_finite",), when=("any",)),
        ExplainedBy(("hang.signature_mismatch", "hang.unused_parameters"), when=("group",)),
    ),
)
