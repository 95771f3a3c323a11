"""The number of sharded units of a job and their total size, from the order of their gathers and reductions.

Units of equal size look alike one by one, and one unit may be used several times in a step. What tells them apart:
a unit that is not gathered again in backward was still there, so several gathers of a forward pass are of as many
units; a gather ahead of its use (prefetch) is another unit's than the one at work; a trace names units, and one
root calls back once at the end of a backward pass. Where none of it holds, the sum is a lower bound. Reads no file.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_state.py (2.4 to 2.13).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct, field

_ONCE = 1.1
"""Gathered over reduced bytes: 1 = once a step, almost 2 = again in backward; a dump may begin in mid-step."""
What = Literal["gather", "reduce", "root_end"]
Phase = Literal["forward", "backward", ""]


class Move(Struct, frozen=True):
    """One gather or reduction of a sharded unit, or the end of a root's backward pass, as the host issued it."""

    what: What
    unit: str | int
    """Its name in traces (empty: a root), else the elements of the whole unit."""
    full_bytes: int = 0
    """Of a gather's output."""
    phase: Phase = ""
    """Of a gather; empty = not known."""
    ahead: bool = False
    """A gather in backward for a unit whose turn has not come."""


class Whole(Struct, frozen=True):
    """All units together, as they are gathered."""

    least_bytes: int
    """0 = nothing is known."""
    is_exact: bool = False
    """False: it may be more, for units of equal size could not be told apart."""
    roots: int = 0
    """Units that are wrapped each by itself, with no whole around them; 0 = not known."""


class _Pass(Struct):
    """From the first gather of a forward pass to the end of the backward pass behind it."""

    forward: Counter[str | int] = field(default_factory=Counter)
    forward_bytes: Counter[str | int] = field(default_factory=Counter)
    backward: Counter[str | int] = field(default_factory=Counter)
    ahead: Counter[str | int] = field(default_factory=Counter)
    reduced: Counter[str | int] = field(default_factory=Counter)
    roots: int = 0
    """Roots that ended without a gather in between, most."""


def whole(moves: Sequence[Move]) -> Whole:
    """Return what the moves of one rank show. `is_exact` is set only if every unit could be counted."""
    keys = list(dict.fromkeys(move.unit for move in moves if move.what == "gather"))
    passes = _passes(moves)
    roots = max((each.roots for each in passes), default=0)
    largest = {key: max(m.full_bytes for m in moves if m.what == "gather" and m.unit == key) for key in keys}
    total, exact = 0, bool(keys)
    for key in keys:
        named = isinstance(key, str) and roots == 1
        size_bytes = largest[key] if named else _together(passes, key, len(keys) == 1, roots)
        total += size_bytes or largest[key]
        exact = exact and size_bytes is not None
    return Whole(total, exact, roots)


def _passes(moves: Iterable[Move]) -> list[_Pass]:
    passes = [_Pass()]
    went_back, ended = False, 0
    for move in moves:
        if move.what == "gather" and move.phase == "forward" and went_back:
            passes.append(_Pass())
            went_back, ended = False, 0
        now = passes[-1]
        if move.what == "root_end":
            went_back, ended = True, ended + 1
            now.roots = max(now.roots, ended)
        elif move.what == "reduce":
            went_back = True
            now.reduced[move.unit] += 1
        elif move.phase == "forward":
            now.forward[move.unit] += 1
            now.forward_bytes[move.unit] += move.full_bytes
        elif move.phase == "backward":
            went_back, ended = True, 0
            now.backward[move.unit] += 1
            now.ahead[move.unit] += move.ahead
    return passes


def _together(passes: Iterable[_Pass], key: str | int, alone: bool, roots: int) -> int | None:
    """Bytes of all units that look like this one; None when it is not known whether they are several.

    Args:
        passes: all of the recording; those that it cuts off, or that have more than one forward pass, do not count.
        key: what they look like.
        alone: all units look like this.
        roots: units that are wrapped each by itself.
    """
    votes: Counter[tuple[bool, int]] = Counter()
    for each in passes:
        times = each.forward[key]
        if not times or times != each.reduced[key]:
            continue
        ahead = each.ahead[key] >= (1 if alone and times == 2 else max(2, times - 1))
        is_told = times == 1 or not each.backward[key] or ahead or roots >= times
        votes[is_told, each.forward_bytes[key]] += 1
    if not votes:
        return None
    (is_told, size_bytes), _ = max(votes.items(), key=lambda vote: (vote[1], vote[0]))
    return size_bytes if is_told else None


def remaining(moves: Sequence[Move]) -> Whole | None:
    """All units when one rank gathers them no more often than it reduces them, several in a row; else None."""
    sizes = {move.unit: move.full_bytes for move in moves if move.what == "gather"}
    gathered = sum(move.full_bytes for move in moves if move.what == "gather")
    reduced = sum(sizes.get(move.unit, 0) for move in moves if move.what == "reduce")
    in_a_row = any(a.what == b.what == "gather" for a, b in pairwise(moves))
    if not in_a_row or not reduced or gathered > _ONCE * reduced:
        return None
    all_forward = [Move(m.what, m.unit, m.full_bytes, "forward" if m.what == "gather" else "") for m in moves]
    return whole(all_forward)
