"""Ranks wait for late ranks in their collectives."""

from collections import Counter, defaultdict
from statistics import median
from typing import Any

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.skew import Late
from diagnostics.analysis.vote import is_majority
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import POSSIBLE, Finding

_MOST = 0.6  # Minimum share of the lateness, and of the steps, that the blamed ranks cause together.
_STANDS_OUT = 2.0  # Multiple of an even share of the lateness, from which a rank is not late by chance.
_WANDERING = 0.05  # Minimum share of the step for lateness that moves from rank to rank.
_STOPS_ON_CPU = 0.3
"""Minimum share of each step on CPU: ranks that share cores are late by chance, up to 16% of a step at a load of 9. Of
a rank with more operations, most steps suffice."""
_COMPARABLE = 0.5  # Share of the largest lateness of a rank, from which another rank is blamed as well.
_TEXTS = Texts(__file__)


def _late(ranks: tuple[int, ...] = (), reason: str = "", within: str = "") -> dict[str, Any]:
    """Return the values for the text on late ranks; `within` is what their host does, an empty `reason` is unknown."""
    place = f" ({within})" if within and reason in ("data", "sync", "pause") else ""
    row = reason if reason in _TEXTS else "unknown"
    why = _TEXTS.phrase("of_each" if len(ranks) > 1 else "of_one", reason=_TEXTS.phrase(f"{row}.reason"))
    return {"late": ranks, "why": why, "place": place, "change": _TEXTS.phrase(f"{row}.change")}


def decide(view: Overview) -> Finding:
    """Decide from matched collectives: which ranks enter them last, and the cost for the others."""
    skew = view.skew
    if len(view.profiles) < 2 or not skew.matched:
        if view.world_size == 1:
            return _TEXTS.ruled_out()
        why = shared.unsplit(view) if len(view.profiles) < 2 else shared.TEXTS.phrase("unmatched")
        return _TEXTS.undecided("unsplit", why=why)
    if not skew.complete:
        counts = {"traced": len(view.profiles), "world_size": view.world_size or "more"}
        return _TEXTS.undecided("few", **counts)
    priced = _priced(view)
    steps = max(1, max(len(profile.steps) for profile in view.profiles))
    waits = view.per_step_ms(lambda profile: sum(call.exposed - call.exposed_transfer for call in profile.calls))
    total = sum(ns for _, ns in priced) / MS / steps
    if not view.worth(total):
        return shared.judged(view, shared.costly(view, total, _TEXTS, "late", **_late()))
    culprits = _culprits(view, priced)
    of_culprits = [(late, ns) for late, ns in priced if set(late.ranks) & set(culprits)]
    waiting = median([ms for rank, ms in waits.items() if rank not in culprits] or waits.values())
    figures = {"step_ms": view.step_ms, "waiting_ms": waiting}
    if not view.on_device:
        # On CPU it must be a stop or more work, as ranks share cores; a stop in step 0 may be before the window.
        lateness = _shares(priced)
        has_more = bool(culprits) and all(_additional_ns(view, rank) >= lateness[rank] / 2 for rank in culprits)
        reasons = {"data", "host", "pause", "sync", *(["compute"] if has_more else [])}
        of_culprits = [
            (late, ns)
            for late, ns in of_culprits
            if late.reason in reasons or (late.step == 0 < steps - 1 and not late.reason)
        ]
        of_steps = [sum(ns for late, ns in of_culprits if late.step == step) / MS for step in range(steps)]
        if not culprits or (median(of_steps) if has_more else min(of_steps)) < _STOPS_ON_CPU * view.step_ms:
            return _TEXTS.ruled_out("chance", ms=waiting, share=_STOPS_ON_CPU, **figures)
    elif not culprits:
        if total < _WANDERING * view.step_ms:
            return _TEXTS.ruled_out("each_time", ms=total, **figures)
        rank, ns = max(_shares(priced).items(), key=lambda item: (item[1], -item[0]))
        shown = _TEXTS.phrase("shown_most", rank=rank, share=ns / sum(ns for _, ns in priced))
        facts = shared.costly(view, total, _TEXTS, "wandering", **figures)
        return shared.judged(view, facts, shown, ranks=(), victims=view.ranks, confidence=POSSIBLE, of_transfer=False)
    own = sum(ns for _, ns in of_culprits) / MS / steps
    if view.on_device and (len({late.step for late, _ in of_culprits}) < _MOST * steps or not view.worth(own)):
        return _TEXTS.ruled_out("not_always", ms=own, **figures)
    weights: Counter[tuple[str, str]] = Counter()
    for late, ns in of_culprits:
        weights[late.reason, late.detail] += ns
    (reason, within), _ = max(weights.items(), key=lambda item: (item[1], item[0]))
    first = max((late for late, _ in of_culprits), key=lambda late: late.lead)
    lead = {"lead_ms": first.lead / MS, "op": first.op, "group": first.group or "?"}
    shown = _TEXTS.phrase("shown", unit=view.unit, count=len(of_culprits), late=culprits, **lead, **figures)
    facts = shared.costly(view, own, _TEXTS, "late", **_late(culprits, reason, within))
    return shared.judged(view, facts, shown, ranks=culprits, victims=shared.others(view, culprits), of_transfer=False)


def _additional_ns(view: Overview, rank: int) -> float:
    """Return the time of the operations that this rank runs more often than any other: other work, not fewer cores."""
    own, *others = sorted(view.profiles, key=lambda profile: profile.rank != rank)
    total = 0.0
    for name, (count, ns) in own.operations.items():
        most = max((other.operations.get(name, (0, 0))[0] for other in others), default=count)
        total += ns * max(0, count - most) / count
    return total


def _priced(view: Overview) -> list[tuple[Late, int]]:
    """Return each late arrival and its cost in ns: per step at most what the ranks' exposed times differ by."""
    exposed: dict[int, list[int]] = defaultdict(list)
    for profile in view.profiles:
        sums: Counter[int] = Counter()
        for call in profile.calls:
            sums[call.step] += call.exposed
        for step in range(len(profile.steps)):
            exposed[step].append(sums[step])
    room = {step: max(values) - min(values) for step, values in exposed.items()}
    result = []
    for late in sorted(view.skew.late, key=lambda late: late.step):  # Of calls in flight together, the first one pays.
        cost = min(late.lead, room.get(late.step, 0))
        if cost > 0:
            room[late.step] -= cost
            result.append((late, cost))
    return result


def _shares(priced: list[tuple[Late, int]]) -> Counter[int]:
    by_rank: Counter[int] = Counter()
    for late, ns in priced:
        for rank in late.ranks:
            by_rank[rank] += ns
    return by_rank


def _culprits(view: Overview, priced: list[tuple[Late, int]]) -> tuple[int, ...]:
    """Return the ranks that cause most of the lateness, alone or together; empty if they are the majority.

    They are no side of a vote, as the others wait for them: half may be late, and of two ranks each in turn.
    """
    by_rank, total = _shares(priced), sum(ns for _, ns in priced)
    least = min(_MOST * total, _STANDS_OUT * total / len(view.profiles))
    least = max(least, _COMPARABLE * max(by_rank.values(), default=0))
    culprits = {rank for rank, ns in by_rank.items() if ns >= least}
    together = sum(ns for late, ns in priced if culprits & set(late.ranks))
    most = len(view.profiles) > 2 and is_majority(len(culprits), len(view.profiles))
    return tuple(sorted(culprits)) if together >= _MOST * total and not most else ()


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_collectives,))
