"""The profiler's allocations of one rank as a stack of bytes over time. Decides nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from math import inf
from operator import itemgetter

from diagnostics.analysis.memory.categories import KIND_OF, Sorter, shared_out
from diagnostics.analysis.memory.curve import Curve
from diagnostics.analysis.memory.model_size import States
from diagnostics.evidence.memory.levels import AT, KINDS, RESERVED, Row, Stack

_Move = tuple[float, int, tuple[tuple[int, int], ...]]
"""When, what goes first at equal times (releases before allocations), changes of levels."""


def sweep(curve: Curve, before_bytes: int, states: States | None, logits_bytes: int | None) -> list[Row]:
    """Rows with times in seconds from the first event of the window; the peak of the curve is one of them.

    Args:
        curve: of one rank.
        before_bytes: what lay on the device before the window, measured or computed.
        states: of the model, to share that out among; None = not known.
        logits_bytes: of one micro-batch, where known.
    """
    levels = _levels(before_bytes, states)
    levels[AT[RESERVED]] = curve.reserved[0][1] if curve.reserved else 0
    stack = Stack(curve.start_us, curve.end_us, levels, pinned=curve.peak_us)
    stack.begin()
    lives = _lives(curve, Sorter(curve, logits_bytes))
    moves = (
        _ends(lives),
        _released(curve, before_bytes, states),
        _outlived(lives),
        _reserved(curve),
        _starts(lives),
    )
    for time_us, _, changes in merge(*moves, key=itemgetter(0, 1)):
        stack.move(time_us, changes)
    return [((time_us - curve.start_us) / 1e6, sizes) for time_us, sizes in stack.finish()]


def _levels(before_bytes: int, states: States | None) -> list[int]:
    levels = [0] * len(KINDS)
    for name, size in shared_out(before_bytes, states).items():
        levels[AT[KIND_OF[name]]] += size
    return levels


@dataclass(frozen=True, slots=True)
class _Life:
    """One allocation that lives longer than the clock can tell."""

    start_us: float
    end_us: float
    later_us: float
    """When a later step than its own begins; infinite when it is gone by then."""
    size_bytes: int
    place: int
    place_later: int


def _lives(curve: Curve, sorter: Sorter) -> list[_Life]:
    found = []
    for one in curve.allocations:
        end_us = inf if one.end_us is None else one.end_us
        if end_us <= one.start_us:
            continue
        later_us = sorter.next_step_us(one)
        place = later = AT[KIND_OF[sorter.category(one, outlived=False)]]
        if later_us is None or later_us >= end_us:
            later_us = inf
        else:
            later = AT[KIND_OF[sorter.category(one, outlived=True)]]
        found.append(_Life(one.start_us, end_us, later_us, one.size_bytes, place, later))
    return found


def _starts(lives: list[_Life]) -> Iterator[_Move]:
    for one in lives:
        yield one.start_us, 3, ((one.place, one.size_bytes),)


def _ends(lives: list[_Life]) -> Iterator[_Move]:
    for one in sorted((one for one in lives if one.end_us < inf), key=lambda one: one.end_us):
        yield one.end_us, 0, ((one.place_later, -one.size_bytes),)


def _outlived(lives: list[_Life]) -> Iterator[_Move]:
    """What lives on into the next step is for something else there: gradients, or kept."""
    changed = (one for one in lives if one.later_us < inf and one.place != one.place_later)
    for one in sorted(changed, key=lambda one: one.later_us):
        yield one.later_us, 1, ((one.place, -one.size_bytes), (one.place_later, one.size_bytes))


def _released(curve: Curve, before_bytes: int, states: States | None) -> Iterator[_Move]:
    """Of what lay there before: the youngest goes first."""
    left, old = before_bytes, _levels(before_bytes, states)
    for time_us, size in curve.released if curve.baseline_bytes is not None else ():
        left = max(0, left - size)
        new = _levels(left, states)
        yield time_us, 0, tuple((at, new[at] - old[at]) for at in range(len(KINDS)) if new[at] != old[at])
        old = new


def _reserved(curve: Curve) -> Iterator[_Move]:
    for (_, old), (time_us, new) in zip(curve.reserved, curve.reserved[1:], strict=False):
        yield time_us, 2, ((AT[RESERVED], new - old),)
