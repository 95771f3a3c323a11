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

_ONCE = 1.1  # Gathered over reduced bytes: 1 = once per step, almost 2 = again in backward; a dump may begin mid-step.
What = Literal["gather", "reduce", "root_end"]
Phase = Literal["forward", "backward", ""]


class Move(Struct, frozen=True):
    """One gather or reduction of a sharded unit, or the end of a root's backward pass, as the host issued it."""

    what: What
    unit: str | int
    """Name in traces (empty for a root), otherwise the number of elements of the whole unit."""
    full_bytes: int = 0
    """Size of the output of a gather."""
    phase: Phase = ""
    """Phase of a gather; empty if unknown."""
    ahead: bool = False
    """Whether this is a prefetch: a gather in backward for a unit that is not needed yet."""


class Whole(Struct, frozen=True):
    """The total size of all units, as they are gathered."""

    least_bytes: int
    """Lower bound of the total; 0 if nothing is known."""
    is_exact: bool = False
    """Whether `least_bytes` is the exact total. False if units of equal size could not be distinguished."""
    roots: int = 0
    """Number of units wrapped individually, with no enclosing root; 0 if unknown."""


class _Pass(Struct):
    """Calls from the first gather of a forward pass to the end of the backward pass that follows."""

    forward: Counter[str | int] = field(default_factory=Counter)
    forward_bytes: Counter[str | int] = field(default_factory=Counter)
    backward: Counter[str | int] = field(default_factory=Counter)
    ahead: Counter[str | int] = field(default_factory=Counter)
    reduced: Counter[str | int] = field(default_factory=Counter)
    roots: int = 0
    """Largest number of roots whose backward ended with no gather in between."""


def whole(moves: Sequence[Move]) -> Whole:
    """Return the total size of the units in one rank's moves. `is_exact` is set only if every unit could be counted."""
    keys = list(dict.fromkeys(move.unit for move in moves if move.what == "gather"))
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
    roots = max((each.roots for each in passes), default=0)
    largest = {key: max(m.full_bytes for m in moves if m.what == "gather" and m.unit == key) for key in keys}
    total, exact = 0, bool(keys)
    for key in keys:
        named = isinstance(key, str) and roots == 1
        size_bytes = largest[key] if named else _together(passes, key, len(keys) == 1, roots)
        total += size_bytes or largest[key]
        exact = exact and size_bytes is not None
    return Whole(total, exact, roots)


def _together(passes: Iterable[_Pass], key: str | int, alone: bool, roots: int) -> int | None:
    """Return the bytes of all units with this key, which may be the only one; None if there may be several.

    Passes that are cut off or have several forward passes are ignored.
    """
    votes: Counter[tuple[bool, int]] = Counter()
    for each in passes:
        times = each.forward[key]
        if not times or times != each.reduced[key]:
            continue
        ahead = each.ahead[key] >= (1 if alone and times == 2 else max(2, times - 1))
        is_clear = times == 1 or not each.backward[key] or ahead or roots >= times
        votes[is_clear, each.forward_bytes[key]] += 1
    if not votes:
        return None
    (is_clear, size_bytes), _ = max(votes.items(), key=lambda vote: (vote[1], vote[0]))
    return size_bytes if is_clear else None


def remaining(moves: Sequence[Move]) -> Whole | None:
    """Return all units if a rank gathers them no more often than it reduces them, several in a row; otherwise None."""
    sizes = {move.unit: move.full_bytes for move in moves if move.what == "gather"}
    gathered = sum(move.full_bytes for move in moves if move.what == "gather")
    reduced = sum(sizes.get(move.unit, 0) for move in moves if move.what == "reduce")
    in_a_row = any(a.what == b.what == "gather" for a, b in pairwise(moves))
    if not in_a_row or not reduced or gathered > _ONCE * reduced:
        return None
    all_forward = [Move(m.what, m.unit, m.full_bytes, "forward" if m.what == "gather" else "") for m in moves]
    return whole(all_forward)
