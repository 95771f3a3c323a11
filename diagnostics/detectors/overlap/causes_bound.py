"""What no schedule can mend: ranks that come late, and more communication than there is compute to hide it."""

from collections import Counter, defaultdict
from statistics import median

from diagnostics.analysis.step_profile.attainable import attainable_percent
from diagnostics.analysis.step_profile.overview import MS, SHARE, Overview
from diagnostics.analysis.step_profile.skew import Late
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.detectors.overlap.decide import confirmed, figure, of_step, ruled_out, too_little, undecided
from diagnostics.evidence.model import Evidence

CAUSES = ("overlap.skew", "overlap.communication_bound")
_SAME_RANK = 0.6
"""Share of the lateness that one set of ranks has to bring about."""
_WANDERING = 0.05
"""Of the step: lateness that moves from rank to rank has to cost more to be named."""
_CPU_SHARE = 0.3
"""On CPU ranks share cores and are late by chance: there it has to be so much, and a stop rather than slow work."""
_HEALTHY = 0.05
"""Exposed transfer below that share of the step is healthy, whatever the ratio."""
_NEAR_BOUND = 0.7
"""Of what is attainable, from which on a schedule counts as good."""
_BEYOND = 1.5
"""Transfer over compute from which on it is the bound, however good the schedule."""
_CPU_BEYOND = 2.0
"""On CPU transfers and compute take each other's cores and both look longer: there it has to be so much more."""
_REASONS = {
    "data": "it waits for its data loader",
    "sync": "its host waits for its device",
    "host": "its host launches work late",
    "wait": "its compute waits for other work on its device",
    "compute": "it computes longer",
    "": "what it does longer cannot be told from the trace",
}


def decide(view: Overview, evidence: Evidence) -> list[Finding]:
    """All causes of this family."""
    if not any(one.calls for one in view.profiles):
        return [ruled_out(cause, "0 collectives in the trace") for cause in CAUSES]
    return [_skew(view), _bound(view)]


def _skew(view: Overview) -> Finding:
    cause = "overlap.skew"
    skew = view.skew
    if len(view.profiles) < 2 or not skew.matched:
        why = "one rank alone was traced" if len(view.profiles) < 2 else "the ranks' collectives could not be matched"
        if view.world_size == 1:
            return ruled_out(cause, "1 rank")
        return undecided(cause, f"Whether ranks wait for a late one cannot be told: {why}.", _more(view))
    if not skew.complete:
        return undecided(
            cause,
            f"Only {len(view.profiles)} of {view.world_size or 'more'} ranks were traced: the late one may be another.",
            _more(view),
        )
    lead = _leads(view)
    steps = max(1, max(len(one.steps) for one in view.profiles))
    waiting = median(_waiting(view).values())
    by_rank: Counter[int] = Counter()
    for late, amount in lead:
        for rank in late.ranks:
            by_rank[rank] += amount
    total = sum(cost for _, cost in lead)
    cost = total / MS / steps
    if not by_rank or not view.worth(cost):
        return too_little(view, cause, cost, "waiting for late ranks")
    blamed = tuple(sorted(rank for rank, amount in by_rank.items() if amount >= _SAME_RANK * total))
    blamed = () if 2 * len(blamed) > len(view.profiles) and len(view.profiles) > 2 else blamed
    if not view.on_device:
        return _skew_on_cpu(view, lead, blamed, steps)
    if not blamed:
        if cost < _WANDERING * view.step_ms:
            return ruled_out(cause, f"waiting {of_step(view, cost)}, a different rank each time")
        return _wandering(view, cost, by_rank, total, waiting)
    own = sum(amount for late, amount in lead if set(late.ranks) & set(blamed)) / MS / steps
    if not _in_most_steps(lead, blamed, steps) or not view.worth(own):
        return ruled_out(cause, f"waiting {of_step(view, own)}, not in every step")
    return _blame(view, blamed, own, [late for late, _ in lead if set(late.ranks) & set(blamed)], waiting)


def _more(view: Overview) -> str:
    return "a profiler trace of every rank (dtk: `record=full`)"


def _leads(view: Overview) -> list[tuple[Late, int]]:
    """Each late arrival with what it cost (ns).

    In a step it is never more than the others' exposed time is longer than the late rank's: lateness that
    compute hides costs nothing.
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
    for late in sorted(view.skew.late, key=lambda one: (one.step, -one.lead)):
        cost = min(late.lead, room.get(late.step, 0))
        if cost > 0:
            room[late.step] -= cost
            result.append((late, cost))
    return result


def _waiting(view: Overview) -> dict[int, float]:
    """Exposed waiting of each rank, ms a step."""
    return view.per_step_ms(lambda one: sum(c.exposed - e for c, _, e in view.calls(one)))


def _in_most_steps(lead: list[tuple[Late, int]], blamed: tuple[int, ...], steps: int) -> bool:
    seen = {late.step for late, _ in lead if set(late.ranks) & set(blamed)}
    return len(seen) >= 0.6 * steps


def _skew_on_cpu(view: Overview, lead: list[tuple[Late, int]], blamed: tuple[int, ...], steps: int) -> Finding:
    cause = "overlap.skew"
    stops = [
        (late, cost) for late, cost in lead if late.reason in ("data", "host", "sync") and set(late.ranks) & set(blamed)
    ]
    per_step: Counter[int] = Counter()
    for late, amount in stops:
        per_step[late.step] += amount
    least = min((per_step[step] / MS for step in range(steps)), default=0.0)
    cost = sum(per_step.values()) / MS / steps
    if not blamed or least < _CPU_SHARE * view.step_ms:
        return ruled_out(
            cause,
            f"waiting {of_step(view, median(_waiting(view).values()))}, and no rank stops for {_CPU_SHARE:.0%} of "
            "every step (ranks share the cores of a CPU, so less is chance)",
        )
    return _blame(view, blamed, cost, [late for late, _ in stops], median(_waiting(view).values()))


def _blame(view: Overview, blamed: tuple[int, ...], cost: float, lates: list[Late], waiting: float) -> Finding:
    weights: Counter[tuple[str, str]] = Counter()
    for late in lates:
        weights[(late.reason, late.detail)] += late.lead
    (reason, detail), _ = max(weights.items(), key=lambda item: (item[1], item[0]))
    why = _REASONS[reason] + (f" ({detail})" if detail and reason in ("data", "sync") else "")
    who = f"Rank {blamed[0]}" if len(blamed) == 1 else f"Ranks {', '.join(map(str, blamed))}"
    first = max(lates, key=lambda late: late.lead)
    return confirmed(
        view,
        "overlap.skew",
        f"{who} comes late to the collectives and the others wait: {of_step(view, cost)}; {why}.",
        cost,
        ranks=blamed,
        victims=tuple(rank for rank in view.ranks if rank not in blamed),
        of_transfer=False,
        details=[
            f"the others wait {figure(waiting)} ms a {view.unit} in {len(lates)} collectives that {who.lower()} enters "
            f"last, at most {figure(first.lead / MS)} ms before {first.op} of group {first.group or '?'}"
        ],
        remedies=[_skew_remedy(reason, blamed, view, cost)],
    )


def _skew_remedy(reason: str, blamed: tuple[int, ...], view: Overview, cost: float) -> Remedy:
    change = {
        "data": "give that rank's data loader more workers, `prefetch_factor` and `persistent_workers=True`",
        "sync": "take the host's wait for the device out of the step of that rank",
        "host": "look at what that rank's host does between its steps: file access, logging, garbage collection",
        "compute": "give all ranks the same work (batches of equal length), and compare the clocks of their devices",
    }.get(reason, "compare that rank's step with another's in the trace viewer")
    return Remedy("code", change, "the others wait for it in every collective", f"at most {of_step(view, cost)}")


def _wandering(view: Overview, cost: float, by_rank: Counter[int], total: int, waiting: float) -> Finding:
    most, amount = max(by_rank.items(), key=lambda item: (item[1], -item[0]))
    return confirmed(
        view,
        "overlap.skew",
        f"Ranks wait for each other {figure(waiting)} ms a {view.unit}, and it is a different one that comes late each "
        f"time: up to {of_step(view, cost)}.",
        cost,
        ranks=(),
        victims=view.ranks,
        confidence=0.7,
        of_transfer=False,
        details=[f"rank {most} comes last most, for {amount / total:.0%} of the lateness"],
        remedies=[
            Remedy(
                "code",
                "give all ranks batches of the same amount of work (bucket by length, balance tokens)",
                "lateness that moves from rank to rank comes from uneven work",
                f"at most {of_step(view, cost)}",
            )
        ],
    )


def _bound(view: Overview) -> Finding:
    cause = "overlap.communication_bound"
    exposed = view.typical_ms(lambda one: sum(e for _, _, e in view.calls(one)))
    transfer = view.typical_ms(lambda one: sum(t for _, t, _ in view.calls(one)))
    compute = view.typical_ms(lambda one: one.window.compute)
    share = exposed / view.step_ms if view.step_ms else 0.0
    if share < max(SHARE, _HEALTHY):
        return ruled_out(cause, f"exposed transfer {of_step(view, exposed)}, healthy below {_HEALTHY:.0%}")
    best = attainable_percent(transfer, compute)
    reached = 100 * (1 - exposed / transfer) if transfer else 100.0
    text = (
        f"overlap {reached:.0f} % of at most {best:.0f} %, transfer {figure(transfer)} ms, compute {figure(compute)} ms"
    )
    if not view.split:
        return undecided(
            cause,
            f"One rank alone: its {figure(exposed)} exposed ms hold waiting as well as transfer ({text}).",
            _more(view),
        )
    near = reached >= _NEAR_BOUND * best or (view.on_device and transfer >= _BEYOND * compute)
    bound = near and transfer > (1.0 if view.on_device else _CPU_BEYOND) * compute
    if bound and view.crowded:
        return undecided(
            cause,
            f"{view.crowded}, so a transfer that waits for a core looks like one that takes long ({text}).",
            "a trace of as many ranks as there are cores, or of the machine that the job is meant for",
        )
    if bound:
        return _at_bound(view, exposed, text, max(0.0, transfer - compute))
    return ruled_out(cause, text)


def _at_bound(view: Overview, exposed: float, text: str, beyond: float) -> Finding:
    if view.run is not None and view.run.config:
        strategy = str(view.declared("strategy.name"))
        batch = view.declared("train.global_batch_size") or 1
        change = (
            "strategy.communication_hook=bf16"
            if strategy in ("ddp", "zero1")
            else f"train.global_batch_size={2 * batch}"
        )
        remedy = Remedy("override", change, "less is sent for the same compute", f"at most {of_step(view, exposed)}")
    else:
        remedy = Remedy(
            "code",
            "reduce in bf16, accumulate more micro-batches between reductions, or shard inside a node only (HSDP)",
            "less is sent for the same compute",
            f"at most {of_step(view, exposed)}",
        )
    return confirmed(
        view,
        "overlap.communication_bound",
        f"There is more to communicate than compute to hide it; {figure(beyond)} ms a {view.unit} would stay exposed "
        f"in any schedule ({text}).",
        exposed,
        details=[text],
        confidence=0.8,
        remedies=[remedy],
    )
