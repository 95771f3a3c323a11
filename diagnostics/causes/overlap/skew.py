"""Ranks wait for late ranks in their collectives."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Literal

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.skew import Late
from diagnostics.causes.overlap._examples import LATE, example
from diagnostics.causes.overlap._idle import others
from diagnostics.causes.overlap._shared import (
    ALL_RANKS,
    Costly,
    NoCollectives,
    NotIt,
    StepCost,
    Undecided,
    cost_of,
    figure,
    judged,
    ruled_out,
    step_cause,
    undecided,
    unsplit,
)
from diagnostics.contract.causes import ExplainedBy
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.formatting import ranks_spoken, sentence

_MOST = 0.6
"""Share of the lateness, and of the steps, that the blamed ranks have to bring about together."""
_STANDS_OUT = 2.0
"""Times an even share of the lateness: a rank that brings about so much is not late by chance."""
_WANDERING = 0.05
"""Of the step: lateness that moves from rank to rank has to cost more to be named."""
_CPU_SHARE = 0.3
"""On CPU ranks share cores and are late by chance: there it has to be so much, and a stop rather than slow work."""
_REASONS = {
    "data": "waits for its data loader",
    "sync": "waits with its host for its device",
    "host": "launches work late",
    "pause": "has a host that pauses",
    "wait": "has compute that waits for other work on its device",
    "compute": "computes longer",
}
_REMEDIES = {
    "data": "give that rank's data loader more workers, `prefetch_factor` and `persistent_workers=True`",
    "sync": "take the host's wait for the device out of the step of that rank",
    "host": "look at what that rank's host does between its steps: file access, logging, garbage collection",
    "pause": "look at what that rank's host does between its steps: file access, logging, garbage collection",
    "compute": "give all ranks the same work (batches of equal length), and compare the clocks of their devices",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRanks(Costly):
    """Why the ranks that the finding blames are late."""

    reason: str
    """A key of `_REASONS`; empty = the trace does not tell."""
    within: str
    """What the host stands in."""
    ranks: tuple[int, ...]

    def seen(self) -> str:
        """Return what was seen."""
        return "waiting for late ranks"

    def summary(self) -> str:
        """Return what is wrong."""
        several = len(self.ranks) > 1
        why = f"it {_REASONS[self.reason]}" if self.reason else "what it does longer cannot be told from the trace"
        why += f" ({self.within})" if self.within and self.reason in ("data", "sync", "pause") else ""
        return (
            f"{sentence(ranks_spoken(self.ranks))} {'come' if several else 'comes'} late to the collectives and the "
            f"others wait: {self.cost}; {'of each, ' if several else ''}{why}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        change = _REMEDIES.get(self.reason, "compare that rank's step with another's in the trace viewer")
        return self.cost.code(change, "the others wait for it in every collective")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wandering(Costly):
    """A different rank comes late each time."""

    waiting_ms: float

    def seen(self) -> str:
        """Return what was seen."""
        return "waiting for late ranks"

    def summary(self) -> str:
        """Return what is wrong."""
        return (
            f"Ranks wait for each other {figure(self.waiting_ms)} ms a {self.cost.unit}, and a different one comes "
            f"late each time: up to {self.cost}."
        )

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.code(
            "give all ranks batches of the same amount of work (bucket by length, balance tokens)",
            "lateness that moves from rank to rank comes from uneven work",
        )


@dataclass(frozen=True, slots=True)
class ByChance(NotIt):
    """Waiting that is not the doing of certain ranks in every step."""

    cost: StepCost | None
    """None: there is one rank only."""
    why: Literal["wanders", "some_steps", "cpu", ""] = ""

    def measured(self) -> str:
        """Return the value that rules it out."""
        why = {
            "wanders": "a different rank each time",
            "some_steps": "not in every step",
            "cpu": f"and no rank stops for {_CPU_SHARE:.0%} of every step (ranks share the cores of a CPU, so less is "
            "chance)",
            "": "",
        }[self.why]
        return "1 rank" if self.cost is None else f"waiting {self.cost}, {why}"


@dataclass(frozen=True, slots=True)
class Unmatched(Undecided):
    """The collectives of the ranks cannot be compared."""

    why: str

    def summary(self) -> str:
        """Return what the evidence does not tell."""
        return f"Whether ranks wait for a late one cannot be told: {self.why}."

    def missing(self) -> str:
        """Return what would record it."""
        return ALL_RANKS


@dataclass(frozen=True, slots=True)
class SomeTraced(Undecided):
    """The late rank may be one that was not traced."""

    traced: int
    world_size: int | None

    def summary(self) -> str:
        """Return what the evidence does not tell."""
        return f"Only {self.traced} of {self.world_size or 'more'} ranks were traced: the late one may be another."

    def missing(self) -> str:
        """Return what would record it."""
        return ALL_RANKS


def decide(view: Overview) -> list[Finding]:
    """Decide it by matched collectives: who enters them last, and what that costs the others."""
    cause, skew = CAUSE.id, view.skew
    if not view.calls:
        return [ruled_out(cause, NoCollectives())]
    if len(view.profiles) < 2 or not skew.matched:
        if view.world_size == 1:
            return [ruled_out(cause, ByChance(None))]
        why = unsplit(view) if len(view.profiles) < 2 else "the ranks' collectives could not be matched"
        return [undecided(cause, Unmatched(why))]
    if not skew.complete:
        return [undecided(cause, SomeTraced(len(view.profiles), view.world_size))]
    priced = _priced(view)
    steps = max(1, max(len(one.steps) for one in view.profiles))
    waiting = median(
        view.per_step_ms(lambda one: sum(call.exposed - call.exposed_transfer for call in one.calls)).values()
    )
    total = sum(ns for _, ns in priced)
    cost = cost_of(view, total / MS / steps)
    if not view.worth(cost.ms):
        return [ruled_out(cause, LateRanks(cost=cost, reason="", within="", ranks=()))]
    blamed = _blamed(view, priced)
    theirs = [(late, ns) for late, ns in priced if set(late.ranks) & set(blamed)]
    if not view.on_device:
        theirs = [(late, ns) for late, ns in theirs if late.reason in ("data", "host", "sync")]
        least = min(sum(ns for late, ns in theirs if late.step == step) for step in range(steps)) / MS
        if not blamed or least < _CPU_SHARE * view.step_ms:
            return [ruled_out(cause, ByChance(cost_of(view, waiting), "cpu"))]
    elif not blamed:
        if cost.ms < _WANDERING * view.step_ms:
            return [ruled_out(cause, ByChance(cost, "wanders"))]
        facts, rank, share = Wandering(cost=cost, waiting_ms=waiting), *_latest(priced)
        shown = f"rank {rank} comes last most, for {share:.0%} of the lateness"
        return judged(view, cause, facts, shown, ranks=(), victims=view.ranks, confidence=0.7, of_transfer=False)
    own = cost_of(view, sum(ns for _, ns in theirs) / MS / steps)
    if view.on_device and (len({late.step for late, _ in theirs}) < _MOST * steps or not view.worth(own.ms)):
        return [ruled_out(cause, ByChance(own, "some_steps"))]
    weights: Counter[tuple[str, str]] = Counter()
    for late, _ in theirs:
        weights[late.reason, late.detail] += late.lead
    (reason, within), _ = max(weights.items(), key=lambda item: (item[1], item[0]))
    first = max((late for late, _ in theirs), key=lambda late: late.lead)
    shown = (
        f"the others wait {figure(waiting)} ms a {view.unit} in {len(theirs)} collectives that {ranks_spoken(blamed)} "
        f"entered last, at most {figure(first.lead / MS)} ms before {first.op} of group {first.group or '?'}"
    )
    return judged(
        view,
        cause,
        LateRanks(cost=own, reason=reason, within=within, ranks=blamed),
        shown,
        ranks=blamed,
        victims=others(view, blamed),
        of_transfer=False,
    )


def _priced(view: Overview) -> list[tuple[Late, int]]:
    """Return each late arrival with what it cost (ns).

    In a step it is never more than the others' exposed time is longer than the late rank's: lateness that compute
    hides costs nothing.
    """
    exposed: dict[int, list[int]] = defaultdict(list)
    for one in view.profiles:
        sums: Counter[int] = Counter()
        for call in one.calls:
            sums[call.step] += call.exposed
        for step in range(len(one.steps)):
            exposed[step].append(sums[step])
    room = {step: max(values) - min(values) for step, values in exposed.items()}
    result = []
    for late in sorted(view.skew.late, key=lambda late: (late.step, -late.lead)):
        cost = min(late.lead, room.get(late.step, 0))
        if cost > 0:
            room[late.step] -= cost
            result.append((late, cost))
    return result


def _shares(priced: list[tuple[Late, int]]) -> Counter[int]:
    """Return the lateness of each rank, ns."""
    by_rank: Counter[int] = Counter()
    for late, ns in priced:
        for rank in late.ranks:
            by_rank[rank] += ns
    return by_rank


def _latest(priced: list[tuple[Late, int]]) -> tuple[int, float]:
    """Return the rank that is late most, and its share of the lateness."""
    rank, ns = max(_shares(priced).items(), key=lambda item: (item[1], -item[0]))
    return rank, ns / sum(ns for _, ns in priced)


def _blamed(view: Overview, priced: list[tuple[Late, int]]) -> tuple[int, ...]:
    """Return the ranks that bring about most of the lateness, each or together; none when they are the majority."""
    by_rank, total = _shares(priced), sum(ns for _, ns in priced)
    blamed = {rank for rank, ns in by_rank.items() if ns >= _MOST * total}
    even = total / len(view.profiles)
    blamed = blamed or {rank for rank, ns in by_rank.items() if ns >= _STANDS_OUT * even}
    together = sum(ns for late, ns in priced if blamed & set(late.ranks))
    minority = 2 * len(blamed) <= len(view.profiles) or len(view.profiles) <= 2
    return tuple(sorted(blamed)) if minority and together >= _MOST * total else ()


CAUSE = step_cause(
    id="overlap.skew",
    title="ranks wait for a late rank",
    branch="slow.bound",
    decide=decide,
    decided_from="traces of two ranks or more: matched collectives, whose last arrival stays shortest",
    remedy="fix what makes the late rank late",
    # A rank whose host is late is what the others wait for.
    explained_by=(
        ExplainedBy(
            ("hang.host_stall", "overlap.data_bound", "overlap.sync_point", "overlap.host_bound", "overlap.pause"),
            ("ranks",),
        ),
        ExplainedBy(("hang.straggler",), ("ranks", "group")),
    ),
    example=example("longer_compute", (LATE,)),
)
