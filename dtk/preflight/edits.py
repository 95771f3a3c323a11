"""How one list of calls becomes another: the fewest calls left out, added or made from another line.

An edit distance whose costs say what is likely in code. Knows two lists of tokens, no ranks and no causes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from diagnostics.evidence.calls import Wire

LONGEST = 800
"""Calls after the first difference that are compared; the table has the square of it."""
_FREE, _OTHER_LINE, _OTHER_CALL, _LEFT_OUT = 0, 10, 11, 10
"""Costs. Another line for an equal call is cheaper than to leave out one and add the other: two sides of one `if`."""
_NEVER = 1 << 40


class Token(NamedTuple):
    """What a call is for the comparison."""

    group: str
    agreed: Wire
    stack: str


@dataclass(frozen=True, slots=True)
class Edit:
    """One difference: calls `usual[at:at + count]` are left out, or `odd[there:there + count]` are added."""

    kind: Literal["left out", "added", "other call"]
    """`other call`: the same line issues something else."""
    at: int
    """Index in the usual list, of the call that comes next there."""
    there: int
    """Index in the odd list, likewise."""
    count: int = 1


def edits(usual: Sequence[Token], odd: Sequence[Token]) -> list[Edit]:
    """The differences in order; equal calls from other lines are none.

    Args:
        usual: the calls to compare with.
        odd: the calls in question.
    """
    start = 0
    while start < min(len(usual), len(odd)) and usual[start] == odd[start]:
        start += 1
    mine, theirs = usual[start : start + LONGEST], odd[start : start + LONGEST]
    whole = len(mine) + start == len(usual) and len(theirs) + start == len(odd)
    found: list[Edit] = []
    i = j = 0
    costs = _costs(mine, theirs, whole=whole)
    while i < len(mine) or j < len(theirs):
        if not whole and (i == len(mine) or j == len(theirs)):
            break
        here = costs[i][j]
        if i < len(mine) and j < len(theirs) and here == _cost(mine[i], theirs[j]) + costs[i + 1][j + 1]:
            if mine[i].agreed != theirs[j].agreed or mine[i].group != theirs[j].group:
                found.append(Edit("other call", start + i, start + j))
            i, j = i + 1, j + 1
        elif j < len(theirs) and here == _LEFT_OUT + costs[i][j + 1]:
            _more(found, "added", start + i, start + j)
            j += 1
        else:
            _more(found, "left out", start + i, start + j)
            i += 1
    return found


def _more(found: list[Edit], kind: Literal["left out", "added"], at: int, there: int) -> None:
    """One call more of the same edit, or a new one."""
    last = found[-1] if found else None
    if last is not None and last.kind == kind:
        end = (last.at + last.count, last.there) if kind == "left out" else (last.at, last.there + last.count)
        if end == (at, there):
            found[-1] = Edit(kind, last.at, last.there, last.count + 1)
            return
    found.append(Edit(kind, at, there))


def _costs(mine: Sequence[Token], theirs: Sequence[Token], *, whole: bool) -> list[list[int]]:
    """Cost from each pair of places to the ends; where a list was cut off, what is left of the other is free."""
    step = _LEFT_OUT if whole else 0
    costs = [[0] * (len(theirs) + 1) for _ in range(len(mine) + 1)]
    costs[-1] = [step * (len(theirs) - j) for j in range(len(theirs) + 1)]
    for i in range(len(mine) - 1, -1, -1):
        row, below, one = costs[i], costs[i + 1], mine[i]
        row[-1] = step * (len(mine) - i)
        for j in range(len(theirs) - 1, -1, -1):
            other = theirs[j]
            both = below[j + 1] if one == other else below[j + 1] + _cost(one, other)
            row[j] = min(both, below[j] + _LEFT_OUT, row[j + 1] + _LEFT_OUT)
    return costs


def _cost(one: Token, other: Token) -> int:
    if one == other:
        return _FREE
    if one.group == other.group and one.agreed == other.agreed:
        return _OTHER_LINE
    return _OTHER_CALL if one.stack == other.stack and one.agreed.op == other.agreed.op else _NEVER
