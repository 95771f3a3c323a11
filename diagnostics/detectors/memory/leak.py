"""`memory.leak`: what each step leaves behind, by allocations that outlive their step or by a timeline that rises."""

from dataclasses import dataclass

from diagnostics.analysis.memory.growth import Growth, growth
from diagnostics.analysis.memory.job import RankMemory, Situation
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Remedy
from diagnostics.detectors.memory.say import place, ranks, size, spot, where
from diagnostics.evidence.model import Frame

LEAK = "memory.leak"
LEAST_BYTES = 64 << 10
LEAST_SHARE = 0.01
"""Of the peak, per step, where single allocations are known."""
LEAST_GROWTH = 0.05
"""Of the last value, over the whole timeline."""
STEADY = 0.99
"""Share of rising stretches: all of them."""
_UNMARKED = frozenset({"step", "outside"})
CORROBORATES = 0.25
"""Of the growth by allocations: what the timeline must show of it."""
LONG = 16
"""Steps from which on a timeline that does not rise speaks against a leak."""
CERTAIN_STEPS = 3
"""From so many profiled steps on one rank's leftovers are proof; with two, all ranks must show the same."""


_HELD = 2
"""Last stretches between backward passes of which a backend may still hold buffers."""
_MARKS = (
    "marked steps: torch.profiler.profile(schedule=torch.profiler.schedule(...), profile_memory=True) and "
    "profiler.step() after each (without a schedule nothing is marked)"
)


@dataclass(frozen=True, slots=True)
class _Leak:
    """One rank's growth."""

    rank: int
    per_step_bytes: int
    place: str
    item: EvidenceItem
    confidence: float
    steps: int = 0
    """Over which it was seen."""
    site: Frame | None = None
    """The function that allocated it, by its head."""


def leak(situation: Situation) -> Finding:
    """Whether memory grows with every step."""
    found = [one for rank in situation.all() if (one := _allocations(situation, rank) or _timeline(rank)) is not None]
    traced = sum(rank.curve is not None for rank in situation.all())
    if found and (len(found) >= traced or any(one.steps >= CERTAIN_STEPS for one in found)):
        return _finding(situation, found)
    if found:
        who = ranks(one.rank for one in found)
        summary = f"Only {who} kept something of both profiled steps: that may be a buffer that a backend still holds."
        missing = "record.profile_steps=4" if situation.is_dtk else "a profiler window of four steps"
        return Finding(cause=LEAK, status="undecided", summary=summary, missing=missing)
    windows = [len(rank.curve.steps) for rank in situation.all() if rank.curve is not None]
    if any(count >= 2 for count in windows):
        measured = f"nothing of one step is left {max(windows) - 1} step later"
        return Finding(cause=LEAK, status="ruled_out", summary="What a step allocates it frees.", measured=measured)
    series = [grown for rank in situation.all() if (grown := _series(rank)) is not None and grown[1].steps >= LONG]
    if series:
        slope = max(one.second_half for _, one in series)
        measured = f"{size(max(0.0, slope))} a step in the second half"
        return Finding(cause=LEAK, status="ruled_out", summary="Memory does not rise steadily.", measured=measured)
    unmarked = [rank for rank in situation.all() if rank.curve is not None and not rank.curve.steps]
    if unmarked:
        return _without_steps(situation, unmarked)
    missing = (
        "record=full, and at least 20 steps"
        if situation.is_dtk
        else "a profiler trace of two steps with profile_memory=True"
    )
    return Finding(cause=LEAK, status="undecided", summary="Memory over the steps was not recorded.", missing=missing)


def _without_steps(situation: Situation, unmarked: list[RankMemory]) -> Finding:
    """By what repeats: a growth between backward passes is a leak if each of them is a step, which nothing tells."""
    summary = "Allocations were recorded, but not which steps they belong to."
    least = max(LEAST_BYTES, LEAST_SHARE * (situation.peak() or 0))
    steady: dict[int, int] = {}
    for rank in unmarked:
        sums = rank.curve.between_backwards() if rank.curve is not None else []
        sums = sums[len(sums) // 3 : -_HELD]
        if len(sums) >= CERTAIN_STEPS and min(sums) >= least and max(sums) <= 2 * min(sums):
            steady[rank.rank] = min(sums)
    if steady:
        summary = f"After each of the last backward passes {size(max(steady.values()))} more are kept on "
        summary += f"{ranks(steady)}: a leak if each is a step, none if they are micro-batches of one."
    return Finding(cause=LEAK, status="undecided", summary=summary, missing=_MARKS)


def _allocations(situation: Situation, rank: RankMemory) -> _Leak | None:
    """Every step of the window leaves as much behind, at the same place; gathered outputs are another cause."""
    curve = rank.curve
    if curve is None or len(curve.steps) < 2:
        return None
    kept = curve.retained()
    steps = sorted(kept)
    sums: dict[str, list[int]] = {}
    for step in steps:
        for region, size_bytes in kept[step].items():
            sums.setdefault(region, []).append(size_bytes)
    least = max(LEAST_BYTES, LEAST_SHARE * (situation.peak() or 0))
    steady = {r: min(v) for r, v in sums.items() if len(v) == len(steps) and min(v) >= least and max(v) <= 2 * min(v)}
    if not steady:
        return None
    region = max(steady, key=lambda one: steady[one])
    series, per_step = _series(rank), sum(steady.values())
    rising = series is not None and series[1].second_half >= CORROBORATES * per_step
    if series is not None and series[1].steps >= LONG and not rising:
        return None  # two steps looked like growth, but the whole run does not grow so
    shown = "" if region in _UNMARKED else region
    detail = f"steps {steps[0]}-{steps[-1]} each leave {size(steady[region])} behind"
    detail += f", allocated in {shown}" if shown else ", allocated outside any marked region"
    item = EvidenceItem("trace", rank.trace_file, detail)
    confidence = 0.95 if rising or len(steps) > CERTAIN_STEPS else 0.9 if len(steps) == CERTAIN_STEPS else 0.75
    sites = curve.kept_sites.get(region)
    site = max(sites, key=lambda frame: (sites[frame], frame.file, frame.line)) if sites else None
    return _Leak(rank.rank, per_step, shown, item, confidence, len(steps), site)


def _timeline(rank: RankMemory) -> _Leak | None:
    """A rise that does not end: the allocator's figure, else the process's, which needs more of it."""
    series = _series(rank)
    if series is None:
        return None
    exact, grown = series
    total = grown.second_half * grown.steps
    last = _last(rank)
    steady = grown.rising >= STEADY and grown.first_half > 0 and 0.5 <= grown.second_half / grown.first_half <= 2.0
    enough = grown.steps >= (LONG if exact else 40) and total >= LEAST_GROWTH * last * (1 if exact else 3)
    if not steady or not enough or total < LEAST_BYTES:
        return None
    what = "allocated memory" if exact else "the process's memory"
    detail = f"{what} rises by {size(grown.second_half)} a step over {grown.steps} steps"
    item = EvidenceItem("timeline", rank.timeline_file, detail)
    return _Leak(rank.rank, int(grown.second_half), "", item, 0.9 if exact else 0.7, grown.steps)


def _series(rank: RankMemory) -> tuple[bool, Growth] | None:
    """(of the allocator, growth); without the first steps, which build what stays."""
    steps = rank.timeline.steps if rank.timeline is not None else []
    steps = steps[max(2, len(steps) // 10) :]
    exact = [(one.step, one.allocated_bytes) for one in steps if one.allocated_bytes is not None]
    found = growth(exact)
    if found is not None:
        return True, found
    found = growth([(one.step, one.rss_bytes) for one in steps if one.rss_bytes is not None])
    return (False, found) if found is not None else None


def _last(rank: RankMemory) -> int:
    steps = rank.timeline.steps if rank.timeline is not None else []
    return (steps[-1].allocated_bytes or steps[-1].rss_bytes or 0) if steps else 0


def _finding(situation: Situation, found: list[_Leak]) -> Finding:
    worst = max(found, key=lambda one: (one.per_step_bytes, -one.rank))
    blamed = tuple(sorted(one.rank for one in found))
    total = _steps_to_go(situation) or 100
    at = f", allocated in {worst.place}" if worst.place else ""
    at += spot(worst.site, at_head=True) if worst.site is not None else ""
    summary = f"Each step leaves {size(worst.per_step_bytes)} behind on {ranks(blamed)}{at}: "
    summary += f"{size(worst.per_step_bytes * total)} after {total} steps."
    return Finding(
        cause=LEAK,
        status="confirmed",
        summary=summary,
        confidence=worst.confidence,
        ranks=blamed,
        cost=Cost(worst.per_step_bytes * total, "bytes"),
        evidence=tuple(one.item for one in found[:2]),
        where=where(worst.site, True, blamed[0], "allocates what stays") if worst.site is not None else (),
        remedies=(_remedy(worst),),
        measured=f"{size(worst.per_step_bytes)} a step",
    )


def _remedy(worst: _Leak) -> Remedy:
    saves = f"{size(worst.per_step_bytes)} a step"
    why = "memory must not depend on the step"
    if worst.place.startswith("Optimizer."):
        change = (
            "make the optimizer once, before the loop: its states are made anew in every step and the old ones kept"
        )
        return Remedy("code", change, "an optimizer that something still refers to keeps its states", saves)
    change = (
        "find what keeps the step's tensors (a list, a dict, a hook, loss without .item()) and keep numbers instead"
    )
    if worst.place or worst.site is not None:
        what = worst.place or (place(worst.site.file, worst.site.line) if worst.site is not None else "")
        change = f"keep no tensors of {what}: store numbers (.item()), or .detach().cpu() what must stay"
    return Remedy("code", change, why, saves)


def _steps_to_go(situation: Situation) -> int | None:
    run = situation.evidence.run
    steps = run.get("train.steps") if run is not None else None
    return steps if isinstance(steps, int) and steps > 0 else None
