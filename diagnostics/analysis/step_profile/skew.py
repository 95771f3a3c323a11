"""Splits collectives into waiting for late ranks and transfer, by matching them over all ranks.

All members leave a collective together, so the one with the shortest duration arrived last: no clocks are compared.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median_low

from msgspec import Struct, field

from diagnostics.analysis.step_profile.profile import CallProfile, RankProfile

_SIZED = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Operations in which all ranks move the same number of bytes."""
_PAIRS = frozenset({"send", "recv", "send_recv"})
_MOST = 0.5
"""Minimum share of the lateness explained by longer idle time, or by longer compute."""
_CLOSE = 0.02
"""Relative difference, to the longest duration, up to which two durations count as equal."""


class Late(Struct, frozen=True):
    """One matched collective at which some ranks arrived later than the others."""

    step: int
    op: str
    size_bytes: int
    group: str
    ranks: tuple[int, ...]
    """Late ranks, in ascending order."""
    lead: int
    """Time in ns between the arrival of the last of the other ranks and that of the first late rank."""
    reason: str
    """`data`, `sync`, `host`, `wait`, `compute`, or empty if nothing explains it."""
    detail: str


class Skew(Struct):
    """Results of matching collectives across ranks."""

    late: list[Late] = field(default_factory=list)
    matched: int = 0
    differing: list[dict[str, object]] = field(default_factory=list)
    """Operation, group and step of collectives that ranks recorded in different numbers."""
    complete: bool = False
    """Whether every member of every matched group was traced."""


def find_skew(profiles: Sequence[RankProfile], world_size: int | None) -> Skew:
    """Match the collectives of all ranks, and set the floor of each matched call."""
    skew = Skew()
    if len(profiles) < 2:
        return skew
    traced = {profile.rank for profile in profiles}
    skew.complete = True
    matched: dict[tuple[object, ...], dict[int, CallProfile]] = defaultdict(dict)
    members: dict[tuple[object, ...], frozenset[int]] = {}
    counts: dict[tuple[object, ...], Counter[int]] = defaultdict(Counter)
    for profile in profiles:
        for call in profile.calls:
            message = call.message
            if message.op in _PAIRS or call.duration <= 0:
                continue
            ranks = group_ranks(profile, message.group)
            size = len(ranks) or message.group_size or world_size or len(traced)
            traced_members = frozenset(ranks) & traced if ranks else frozenset(traced)
            if len(traced_members) < size:
                skew.complete = False
            if len(traced_members) < 2:
                continue
            step = profile.steps[call.step].number if profile.marked else None
            stem = (message.group, ranks, step, message.op, message.size_bytes if message.op in _SIZED else 0)
            counts[stem][profile.rank] += 1
            members[stem] = traced_members
            order: tuple[object, ...] = ("order", counts[stem][profile.rank])
            number = order if message.seq is None else ("seq", message.seq)
            matched[stem + number][profile.rank] = call
    for key, count in sorted(counts.items(), key=lambda item: str(item[0])):
        if len(set(count.values())) > 1 or set(count) != members[key]:
            skew.differing.append({"op": key[3], "group": key[0], "step": key[2]})
    for calls in matched.values():
        if len(calls) > 1:
            skew.matched += 1
            if (late := _late(calls)) is not None:
                skew.late.append(late)
    return skew


def group_ranks(own: RankProfile, name: str) -> tuple[int, ...]:
    """Return the global ranks of a group by its name or its mesh dimension; empty if unknown."""
    info = own.groups.get(name)
    if info is not None:
        return tuple(sorted(info.ranks))
    fitting = [g for g in own.groups.values() if name and g.desc in (name, f"mesh_{name}") and own.rank in g.ranks]
    return tuple(sorted(fitting[0].ranks)) if len(fitting) == 1 else ()


def _late(calls: dict[int, CallProfile]) -> Late | None:
    """Set the floor of one collective; return the late ranks, or None if there are none."""
    ordered = sorted((call.duration, rank) for rank, call in calls.items())
    for call in calls.values():
        call.floor = ordered[0][0]
    half = max(1, len(ordered) // 2)
    lead, cut = max((ordered[k][0] - ordered[k - 1][0], -k) for k in range(1, half + 1))
    if lead <= _CLOSE * ordered[-1][0]:
        return None
    ranks = tuple(sorted(rank for _, rank in ordered[:-cut]))
    # What took the late ranks longer than the others since the previous collective is the reason.
    others = [call for rank, call in calls.items() if rank not in ranks]
    idled, busy = median_low([call.idled for call in others]), median_low([call.busy for call in others])
    gaps = [calls[rank].gap for rank in ranks if calls[rank].idled - idled >= _MOST * lead]
    if gap := next(filter(None, gaps), None):
        reason, detail = str(gap.reason), gap.detail
    else:
        reason, detail = "compute" if any(calls[rank].busy - busy >= _MOST * lead for rank in ranks) else "", ""
    sample = next(iter(calls.values()))
    message = sample.message
    return Late(sample.step, message.op, message.size_bytes, message.group, ranks, lead, reason, detail)
