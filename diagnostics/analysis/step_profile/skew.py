"""Splits collectives into waiting for late ranks and transfer, by matching them over all ranks.

All members leave a collective together, so the one that stayed shortest came last: no clocks are compared.
Says who came late and what it did before; whether that is worth a word is decided elsewhere.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low

from diagnostics.analysis.step_profile.profile import Fact, RankProfile

_SIZED = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Operations in which all ranks move the same number of bytes."""
_PAIRS = frozenset({"send", "recv", "send_recv"})
_MOST = 0.5
"""Share of the lateness that a longer gap, or longer compute, has to explain."""
_CLOSE = 0.02
"""Two durations are the same within that share of the longest."""


@dataclass(frozen=True, slots=True)
class Late:
    """One matched collective in which some ranks came later than the others."""

    step: int
    op: str
    size_bytes: int
    group: str
    ranks: tuple[int, ...]
    """Those that came late, ascending."""
    lead: int
    """ns by which the earliest of them came after the last of the others."""
    reason: str
    """`data`, `sync`, `host`, `wait`, `compute` or `` when nothing explains it."""
    detail: str


@dataclass(slots=True)
class Skew:
    """All that is known across ranks."""

    floors: dict[int, list[int]] = field(default_factory=dict)
    """Rank -> transfer time of each of its calls; -1 = not matched."""
    late: list[Late] = field(default_factory=list)
    matched: int = 0
    differing: list[str] = field(default_factory=list)
    """Where ranks recorded different numbers of a collective, in words."""
    complete: bool = False
    """Every member of every matched group was traced."""


def find_skew(profiles: Sequence[RankProfile], world_size: int | None) -> Skew:
    """Match what the ranks recorded.

    Args:
        profiles: one for each traced rank.
        world_size: ranks of the job, if known.
    """
    skew = Skew({one.rank: [-1] * len(one.calls) for one in profiles})
    if len(profiles) < 2:
        return skew
    traced = {one.rank for one in profiles}
    skew.complete = True
    found: dict[tuple[object, ...], dict[int, tuple[int, Fact]]] = defaultdict(dict)
    members: dict[tuple[object, ...], frozenset[int]] = {}
    counts: dict[tuple[object, ...], Counter[int]] = defaultdict(Counter)
    for one in profiles:
        _collect(one, traced, world_size, skew, (found, members, counts))
    for key, ranks in sorted(counts.items(), key=lambda item: str(item[0])):
        if len(set(ranks.values())) > 1 or set(ranks) != members[key]:
            skew.differing.append(f"{key[3]} of group {key[0] or '?'} in step {key[2]}")
    for calls in found.values():
        _take(calls, skew)
    return skew


_Tables = tuple[
    dict[tuple[object, ...], dict[int, tuple[int, Fact]]],
    dict[tuple[object, ...], frozenset[int]],
    dict[tuple[object, ...], Counter[int]],
]


def _collect(one: RankProfile, traced: set[int], world: int | None, skew: Skew, tables: _Tables) -> None:
    """Enter one rank's calls under what identifies them on every rank."""
    found, members, counts = tables
    seen: Counter[tuple[object, ...]] = Counter()
    for n, call in enumerate(one.calls):
        message = call.message
        if message.op in _PAIRS or call.duration <= 0:
            continue
        ranks = group_ranks(one, message.group)
        size = len(ranks) or message.group_size or world or len(traced)
        here = frozenset(ranks) & traced if ranks else frozenset(traced)
        if len(here) < size:
            skew.complete = False
        if len(here) < 2:
            continue
        step = one.steps[call.step].number if one.marked else None
        bytes_ = message.size_bytes if message.op in _SIZED else 0
        stem = (message.group, ranks, step, message.op, bytes_)
        counts[stem][one.rank] += 1
        members[stem] = here
        seen[stem] += 1
        number: tuple[object, ...] = ("seq", message.seq) if message.seq is not None else ("order", seen[stem])
        found[stem + number][one.rank] = (n, call)


def group_ranks(one: RankProfile, name: str) -> tuple[int, ...]:
    """Global ranks of a group by its name, or by the mesh dimension that it is; empty when unknown."""
    info = one.groups.get(name)
    if info is not None:
        return tuple(sorted(info.ranks))
    fitting = [g for g in one.groups.values() if name and g.desc in (name, f"mesh_{name}") and one.rank in g.ranks]
    return tuple(sorted(fitting[0].ranks)) if len(fitting) == 1 else ()


def _take(calls: dict[int, tuple[int, Fact]], skew: Skew) -> None:
    """One collective: its floor, and who came late."""
    sample = next(iter(calls.values()))[1]
    if len(calls) < 2:
        return
    skew.matched += 1
    floor = min(call.duration for _, call in calls.values())
    for rank, (n, _) in calls.items():
        skew.floors[rank][n] = floor
    ordered = sorted((call.duration, rank) for rank, (_, call) in calls.items())
    half = max(1, len(ordered) // 2)
    lead, cut = max((ordered[k][0] - ordered[k - 1][0], -k) for k in range(1, half + 1))
    if lead <= _CLOSE * ordered[-1][0]:
        return
    ranks = tuple(sorted(rank for _, rank in ordered[:-cut]))
    reason, detail = _why(calls, ranks, lead)
    message = sample.message
    skew.late.append(Late(sample.step, message.op, message.size_bytes, message.group, ranks, lead, reason, detail))


def _why(calls: dict[int, tuple[int, Fact]], late: tuple[int, ...], lead: int) -> tuple[str, str]:
    """What the late ranks did longer than the others since the collective before."""
    others = [call for rank, (_, call) in calls.items() if rank not in late]
    theirs = [calls[rank][1] for rank in late]
    pause = median_low([one.gap.length if one.gap else 0 for one in others])
    busy = median_low([one.busy for one in others])
    for one in theirs:
        if one.gap is not None and one.gap.length - pause >= _MOST * lead:
            return one.gap.reason, one.gap.detail
    if any(one.busy - busy >= _MOST * lead for one in theirs):
        return "compute", ""
    return "", ""
