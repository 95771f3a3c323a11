"""Whether flight dumps can be of one job: what two of them say about the same collective must agree.

Knows nothing of hangs: a rank that issued another collective than its peers is of the same job all the same.
"""

from collections.abc import Sequence
from typing import Any

from diagnostics.evidence.calls import GroupKey

APART_S = 3600.0
"""Ranks that issue the same collective so far apart are of different jobs: nothing waits so long by default."""
SAMPLE = 32
"""Dumps that are compared with each other; all would be a second pass over large evidence."""
SAME_S = 1.0
"""A rank's clock, read twice for the same call."""


def contradiction(one: Any, other: Any) -> str:
    """Why two dumps of one rank are not of one job; empty when they can be, as an earlier and a later dump."""
    first, second = _calls(one), _calls(other)
    for key in sorted(first.keys() & second.keys()):
        (began, what), (began_other, what_other) = first[key], second[key]
        if what != what_other:
            return f"collective #{key[1]} is {what} in one and {what_other} in the other"
        if began and began_other and abs(began - began_other) > SAME_S:
            return f"collective #{key[1]} was issued {abs(began - began_other):,.0f} s later in one than in the other"
    return ""


def far_apart(handles: Sequence[Any]) -> list[list[Any]]:
    """Handles by job, where the times of the same collective tell several jobs; else one list or none."""
    stride = max(1, len(handles) // SAMPLE)
    known = [(handle, calls) for handle in handles[::stride] if (calls := _calls(handle))]
    if len(known) < 2:
        return []
    common = set.intersection(*(set(calls) for _, calls in known))
    if not common:
        return []
    key = min(common, key=lambda item: (item[1], item[0]))
    timed = sorted(((calls[key][0], n) for n, (_, calls) in enumerate(known) if calls[key][0]))
    jobs: list[list[Any]] = []
    last: float | None = None
    for began, n in timed:
        if last is None or began - last > APART_S:
            jobs.append([])
        jobs[-1].append(known[n][0])
        last = began
    return jobs


def _calls(handle: Any) -> dict[tuple[GroupKey, int], tuple[float, str]]:
    """Group and number of each collective -> when it was issued (0 = unknown), and what it is."""
    try:
        dumps = handle.load()
    except (OSError, ValueError):
        return {}
    found: dict[tuple[GroupKey, int], tuple[float, str]] = {}
    shared: set[GroupKey] = set()
    for dump in dumps:
        for call in dump.calls:
            if not call.p2p:
                place = call.key, call.seq
                if place in found:
                    shared.add(call.key)  # several groups under one name: numbers do not tell calls apart
                found[place] = call.created_s or 0.0, call.described.text
    return {place: call for place, call in found.items() if place[0] not in shared}
