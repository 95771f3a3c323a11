"""How one rank's calls repeat, and where it departs from earlier rounds, whose order was right as they completed."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Literal

from msgspec import Struct

from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.model import Frame

Step = tuple[str, tuple[Frame, ...], int | None, GroupKey]


class Departure(Struct, frozen=True):
    """The first call with which a rank departs from its earlier rounds."""

    kind: Literal["count", "order", "new"]
    """Calls in a known order, but more or fewer; one that never came after its predecessor; one never made before."""
    call: Call
    expected: Call
    """What it made there in the earlier round that is most alike."""
    change: Counter[tuple[str, int | None]]
    """Half and peer -> how many more messages there are than in that round."""


def step_of(call: Call) -> Step:
    """Return what stays equal of a call from round to round, first what ranks share: not its sizes and tags."""
    return call.p2p or call.wire.op, call.stack, call.peer, call.key


def rounds(calls: Sequence[Call]) -> list[Sequence[Call]]:
    """Divide the calls of a rank at the start of each pass of the outermost loop; the first part may hold a set-up.

    A loop shows in a way taken twice or more, from one call back to one before. Of nested loops the outermost has the
    most different calls in each pass, or else begins last. One of messages that all differ may be its first inner one.
    """
    steps, ways = [step_of(call) for call in calls], dict[tuple[Step, Step], list[int]]()
    for at, way in enumerate(pairwise(steps), 1):
        ways.setdefault(way, []).append(at)
    # The number of different calls in the least pass of a loop, and where each pass begins.
    loops = [
        (min(len({*steps[start:end]}) for start, end in pairwise(taken)), taken)
        for (_, to), taken in ways.items()
        if len(taken) > 1 and to in steps[: taken[0]]
    ]
    flat = [all(call.p2p for call in calls[at[0] : at[1]]) and least == at[1] - at[0] for least, at in loops]
    loops = [loop for loop, is_flat in zip(loops, flat, strict=True) if not is_flat]
    cuts = max(loops, default=(0, list[int]()))[1]
    return [calls[start:end] for start, end in pairwise([0, *cuts, len(calls)])]


def departure(passes: Sequence[Sequence[Call]], number: int) -> Departure | None:
    """Return where a round departs from all earlier whole ones; None if it may still become like one of them."""
    # The first call of the next round ends a whole one.
    *whole, now = ([*calls, *after[:1]] for calls, after in pairwise([*passes[1 : number + 2], []][: number + 1]))
    steps, history = [step_of(call) for call in now], [call for calls in passes[:number] for call in calls]
    same = ((step == step_of(call) for step, call in zip(steps, calls, strict=False)) for calls in whole)
    alike = [len([*takewhile(bool, row)]) for row in same]
    if (at := max(alike)) == len(now):
        return None
    likest = whole[alike.index(at)]
    kind: Literal["count", "order", "new"] = "count"
    first, expected = now[at], likest[min(at, len(likest) - 1)]
    ever, followed = {step_of(call) for call in history}, dict[Step, dict[Step, Call]]()
    for call, following in pairwise([*history, now[0]]):
        followed.setdefault(step_of(call), {})[step_of(following)] = following
    for call, (step, after) in zip(now[1:], pairwise(steps), strict=True):
        if after not in (before := followed.get(step, {})):
            # It may come after the first call that differs, as where all ranks have more to do than before.
            expected = expected if call is first or not before else [*before.values()][-1]
            kind, first = "order" if after in ever else "new", call
            break
    change = Counter((call.p2p, call.peer) for call in passes[number])
    change.subtract((call.p2p, call.peer) for call in passes[1 + alike.index(at)])
    change[expected.p2p, expected.peer] = -1
    return Departure(kind, first, expected, change)
