"""A circle of waits over two groups that is no matter of order: a rank walked past one of its calls.

Who goes through the same calls again and again shows what comes next. A rank that stands at a call of its next
round, where its peer stands at the call that comes next, left that call out; one that merely used two groups the
other way round does so from other lines. Knows two ranks' calls; decides no cause.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from diagnostics.analysis.wait_graph.graph import Cycle, Operation
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.calls import Call, GroupKey

_LONGEST = 2048
"""Calls before the circle that are compared."""


@dataclass(frozen=True, slots=True)
class Walked:
    """Ranks that wait in `here` though `there` came before it on their way."""

    ranks: tuple[int, ...]
    peers: tuple[int, ...]
    """Ranks that wait in `there`."""
    here: Call
    there: Call
    made: tuple[int, ...] = ()
    """Ranks of other groups that made the call of `there`'s line in this round, in their own group."""
    left_out: tuple[int, ...] = ()
    """Ranks of other groups that did not, though they had in earlier rounds."""


def find(context: Context, cycle: Cycle) -> Walked | None:
    """The call that ranks of the circle walked past; None where the calls do not show it."""
    for recorder in sorted({operation.key.recorder for operation in cycle.operations}, key=lambda name: name == "dtk"):
        operations = [operation for operation in cycle.operations if operation.key.recorder == recorder]
        for missed in operations:
            found = _past(context, cycle, operations, missed)
            if found is not None:
                return found
    return None


def _past(context: Context, cycle: Cycle, operations: list[Operation], missed: Operation) -> Walked | None:
    """Whether every rank of the circle that `missed` waits for, and that waits elsewhere in it, walked past it."""
    waits = context.waits
    peers = tuple(rank for rank in waits.waiting[missed] if rank in cycle.ranks)
    ranks, first = [], None
    others: dict[int, bool] = {}
    for rank in waits.absent[missed]:
        here = next((one for one in operations if one != missed and rank in waits.waiting[one]), None)
        if here is None:
            continue
        peer = next((one for one in peers if one in waits.absent[here]), None)
        if peer is None or not _walked(context, rank, peer, here, missed):
            return None
        first = first or (waits.calls[rank, here], waits.calls[peer, missed])
        ranks.append(rank)
        others |= {
            one: said for one in waits.waiting[here] if (said := _round(context, one, here, first[1])) is not None
        }
    if first is None:
        return None
    rest = sorted(set(others) - set(ranks) - set(waits.waiting[missed]))
    made = tuple(rank for rank in rest if others[rank])
    left_out = tuple(rank for rank in rest if not others[rank])
    return Walked(tuple(ranks), tuple(waits.waiting[missed]), *first, made, left_out)


def _round(context: Context, rank: int, here: Operation, there: Call) -> bool | None:
    """Whether a rank that waits in `here` made the call of `there`'s line since it was here before; None = never."""
    keys = [key for key, table in sorted(context.survey.groups.items()) if key.recorder == here.key.recorder]
    way = _way(context, rank, [key for key in keys if rank in context.survey.groups[key].lines])
    if not there.stack or not way or _token(way[-1]) != _token(context.waits.calls[rank, here]):
        return None
    last = next((at for at in range(len(way) - 2, -1, -1) if _token(way[at]) == _token(way[-1])), None)
    places = [at for at, call in enumerate(way) if (call.stack, call.wire) == (there.stack, there.wire)]
    return places[-1] > last if places and last is not None else None


def _walked(context: Context, rank: int, peer: int, here: Operation, missed: Operation) -> bool:
    """Both made the same calls up to the circle; then the peer came to the next one, and the rank to a later one."""
    keys = [
        key
        for key, table in sorted(context.survey.groups.items())
        if key.recorder == here.key.recorder and {rank, peer} <= set(table.lines)
    ]
    ours, theirs = _way(context, rank, keys), _way(context, peer, keys)
    mine, other = context.waits.calls[rank, here], context.waits.calls[peer, missed]
    if not mine.stack or not other.stack or mine.stack == other.stack:
        return False
    if not ours or not theirs or _token(ours[-1]) != _token(mine) or _token(theirs[-1]) != _token(other):
        return False
    if len(ours) == len(theirs) and mine.step is not None and other.step is not None and mine.step > other.step:
        return True
    before, common = [_token(call) for call in ours[:-1]], [_token(call) for call in theirs[:-1]]
    size = min(len(before), len(common))
    if not size or before[-size:] != common[-size:]:
        return False
    return _comes_next(before[-size:], _token(other), _token(mine)) and _not_turned(ours[:-1], mine, other)


def _way(context: Context, rank: int, keys: Iterable[GroupKey]) -> list[Call]:
    """A rank's calls in these groups in the order in which it made them, up to the first that did not complete."""
    calls = [call for key in keys for call in context.reading.calls(rank, key)]
    calls.sort(key=lambda call: call.created_s or 0.0)
    waits = {(operation.key, operation.seq) for operation in context.waits.of_rank.get(rank, []) if operation.peer < 0}
    end = next((at for at, call in enumerate(calls) if (call.key, call.seq) in waits), len(calls) - 1)
    return calls[max(0, end + 1 - _LONGEST) : end + 1]


def _token(call: Call) -> tuple[object, ...]:
    return (call.key, call.wire, call.stack)


def _comes_next(before: list[tuple[object, ...]], expected: tuple[object, ...], got: tuple[object, ...]) -> bool:
    """Whether after the last call, when it was made the time before, `expected` came and `got` only behind it."""
    last = len(before) - 1
    again = next((at for at in range(last - 1, -1, -1) if before[at] == before[last]), None)
    if again is None or before[again + 1] != expected:
        return False
    return got in before[again + 1 :]


def _not_turned(before: list[Call], mine: Call, other: Call) -> bool:
    """Whether the two calls cannot have been swapped: a swap shows in the stacks, or `mine` opens the next round.

    Where only the innermost line was recorded, a caller may use two functions the other way round unseen.
    """
    if len(mine.stack) > 1 or mine.stack[0].function == other.stack[0].function:
        return True
    tokens = [_token(call) for call in before]
    if before[0].seq != 1 or _token(mine) not in tokens or _token(other) not in tokens:
        return False
    return tokens.index(_token(mine)) < tokens.index(_token(other))
