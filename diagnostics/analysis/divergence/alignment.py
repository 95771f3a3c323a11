"""The cheapest way to turn one history into another: which calls were dropped, inserted or made with other arguments.
For whole histories, which may differ in several places; `edit` looks for the one edit at a known place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

from diagnostics.analysis.divergence.identity import agree
from diagnostics.evidence.calls import Wire
from diagnostics.evidence.model import Frame

LONGEST = 800  # Calls compared behind the first difference; time and memory grow with the square (800: 0.4 s, 5 MiB).
_DROP, _OTHER_LINE, _OTHER_ARGUMENTS = 10, 10, 11
"""Costs. An equal call from another line is cheaper than a drop and an insertion: these are two sides of one `if`."""
_NEVER = 1 << 40  # Above any sum of the costs of LONGEST calls: such a pair is never aligned.


class PathCall(NamedTuple):
    """A call by what it asks for and the way to it, the same on all ranks that make it."""

    group: str
    """What the group is called on all ranks, also where each is in one of its own."""
    wire: Wire
    """Its root is the rank in the group."""
    stack: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A run of calls that one history has and the other has not, or has with other arguments."""

    kind: Literal["drop", "insert", "arguments"]
    at: int
    """Index in the majority's history, of the first call of the run or of the one that comes next there."""
    there: int
    """Index in the minority's history, likewise."""
    count: int

    @property
    def end(self) -> tuple[int, int]:
        """Both indices behind the run."""
        return self.at + (self.kind != "insert") * self.count, self.there + (self.kind != "drop") * self.count


def align(majority: Sequence[PathCall], minority: Sequence[PathCall]) -> list[Change]:
    """Return the changes in order; equal calls from other lines are none."""
    start = 0
    while start < min(len(majority), len(minority)) and majority[start] == minority[start]:
        start += 1
    ours, theirs = majority[start : start + LONGEST], minority[start : start + LONGEST]
    whole = len(ours) + start == len(majority) and len(theirs) + start == len(minority)
    # From each pair of places to the ends; where a list was cut off, the rest of the other is free.
    rest = _DROP if whole else 0
    costs = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    costs[-1] = [rest * (len(theirs) - j) for j in range(len(theirs) + 1)]
    for i in range(len(ours) - 1, -1, -1):
        row, below, mine = costs[i], costs[i + 1], ours[i]
        row[-1] = rest * (len(ours) - i)
        for j in range(len(theirs) - 1, -1, -1):
            match = below[j + 1] if mine == theirs[j] else below[j + 1] + _cost(mine, theirs[j])
            row[j] = min(match, below[j] + _DROP, row[j + 1] + _DROP)
    steps: list[tuple[str, int, int]] = []
    i = j = 0
    while (i < len(ours) or j < len(theirs)) if whole else (i < len(ours) and j < len(theirs)):
        both = i < len(ours) and j < len(theirs)
        if both and costs[i][j] == _cost(ours[i], theirs[j]) + costs[i + 1][j + 1]:
            same = ours[i].group == theirs[j].group and agree(ours[i].wire, theirs[j].wire)
            steps.append(("same" if same else "arguments", i, j))
            i, j = i + 1, j + 1
        elif j < len(theirs) and costs[i][j] == _DROP + costs[i][j + 1]:
            steps.append(("insert", i, j))
            j += 1
        else:
            steps.append(("drop", i, j))
            i += 1
    runs = [(kind, list(run)) for kind, run in groupby(steps, key=itemgetter(0)) if kind != "same"]
    return [Change(kind, start + run[0][1], start + run[0][2], len(run)) for kind, run in runs]  # type: ignore[arg-type]


def _cost(one: PathCall, other: PathCall) -> int:
    if one == other:
        return 0
    if one[:2] == other[:2]:
        return _OTHER_LINE
    return _OTHER_ARGUMENTS if one.stack == other.stack and one.wire.op == other.wire.op else _NEVER
