"""A loop repeats the same calls: who goes on with it, who leaves it, and who calls something more within it?

By the calls' own lines and callers, by the program's text where it is at hand, by names last. Knows no ranks.
"""

import re

from diagnostics.analysis import source_text
from diagnostics.analysis.divergence.difference import Difference, Kind, in_backward, token
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import Frame

_OUTSIDE = re.compile(r"eval|valid|test|save|checkpoint|finish|final|teardown|destroy|shutdown|export|epoch_end", re.I)
_NEAR_LINES = range(2, 5)
"""An `if` at the end of a loop puts its call this near behind the loop's other calls, and not on the next line."""
_LONGEST = 512


def period_of(tokens: list[tuple[object, ...]], begins: tuple[object, ...] | None = None) -> int:
    """Length of the shortest pattern that the list ends in at least twice; 0 = none.

    Args:
        tokens: calls.
        begins: of several patterns take the one that begins with this, if there is one: what comes next in it.
    """
    first = 0
    for size in range(1, min(len(tokens) // 2, _LONGEST) + 1):
        if tokens[-size:] == tokens[-2 * size : -size]:
            if begins is None or tokens[-size] == begins:
                return size
            first = first or size
    return first


def leaves(expected: Call, got: Call, before: list[Call]) -> Difference | None:
    """What the second rank did where one side's call is the loop's next one; None when no loop or neither is."""
    tokens = [token(call) for call in before]
    size = period_of(tokens, token(expected))
    if size and tokens[-size] != token(expected):
        size = period_of(tokens, token(got))
    if not size:
        return None
    loop, body = tokens[-size:], before[-size:]
    goes_on, stays = token(expected) == loop[0], token(got) == loop[0]
    if goes_on and not stays:
        if token(got) in loop:
            count = loop.index(token(got))
            why = f"its next call is the one {count} later in the loop"
            return Difference("skipped", 0.85, (expected, *body[1:count]), why)
        if made := _whole_round(before, got, expected):
            why = f"after as many calls of the loop as in the round before ({made}) its peers go on without it"
            return Difference("extra", 0.85, (got,), why)
        after = f"after {len(before)} equal calls it left the loop"
        return apart(got, expected, body, ("fewer", (expected, got), after), ("extra", (got,)), "it made")
    if stays and not goes_on:
        if token(expected) in loop:
            return Difference("extra", 0.8, (got,), "its peers are already further in the loop")
        if made := _whole_round(before, expected, got):
            why = f"after as many calls of the loop as in the round before ({made}) it goes on without it"
            return Difference("skipped", 0.85, (expected,), why)
        after = f"after {len(before)} equal calls only it goes on"
        return apart(expected, got, body, ("more", (got, expected), after), ("skipped", (expected,)), "they made")
    return None


def _whole_round(before: list[Call], last: Call, inner: Call) -> int:
    """Calls of an inner loop since `last` ended a round of an outer one, if the round before had as many; else 0.

    Who runs an inner loop more or less often than its peers does so in the first round already.
    """
    ends = [place for place, call in enumerate(before) if token(call) == token(last)][-2:]
    if not ends:
        return 0
    start = ends[0] + 1 if len(ends) == 2 else 0
    rounds = (before[start : ends[-1]], before[ends[-1] + 1 :])
    this, now = (sum(call.stack == inner.stack for call in one) for one in rounds)
    return now if now and this == now else 0


def apart(
    call: Call,
    inside: Call,
    body: list[Call],
    left: tuple[Kind, tuple[Call, ...], str],
    within: tuple[Kind, tuple[Call, ...]],
    who: str,
) -> Difference | None:
    """`call` is no call of the loop: behind it, or within it and made by some ranks only.

    Args:
        call: it.
        inside: the loop's call that it meets.
        body: one round of the loop.
        left: kind, calls and reason if it is behind the loop.
        within: kind and calls if it is not.
        who: `it made` or `they made`.
    """
    if _by_text(inside, body) == "outside":
        return None  # The same function, called behind the loop: nobody is in the loop any more.
    said = _by_text(call, body)
    if said in {"outside", "leaves"}:
        how = "which the program's text has behind the loop" if said == "outside" else "from which it leaves the loop"
        return Difference(left[0], 0.9, left[1], f"{left[2]}: {who} {call.text}, {how}", settled=True)
    if said == "inside" and _branches(inside, call):
        return Difference("operation", 0.9, left[1], "by the program's text an `if` and its `else`")
    if said == "inside" and replaces(inside, call):
        return None
    if said == "inside":
        why = f"by the program's text {who} {call.text} within the loop"
        return Difference(within[0], 0.9, within[1], why, settled=True)
    outside, confidence = _left_loop(call, inside, body)
    if outside and (_near(call, body) or _callers_unknown(call, body)):
        return Difference(left[0], confidence, left[1], left[2], settled=in_backward(inside), other=within[0])
    if outside:
        # Who is out of the loop while the others are in backward left it, however many they are.
        seen = in_backward(inside) and not in_backward(call)
        return Difference(left[0], confidence, left[1], left[2], settled=seen)
    if replaces(inside, call):
        return None
    if _near(call, body):
        return Difference(left[0], confidence, left[1], left[2], settled=in_backward(inside), other=within[0])
    why = "no rank made this call before" if within[0] == "extra" else "it goes on with the loop without it"
    return Difference(within[0], confidence, within[1], why)


def _by_text(call: Call, body: list[Call]) -> source_text.Place:
    """What the program says, at the level where the call's path parts from that of the loop's calls."""
    path, bodies = call.stack[::-1], [one.stack[::-1] for one in body]
    level = 0
    while level < len(path) and all(len(one) > level and one[level] == path[level] for one in bodies):
        level += 1
    if level >= len(path) or any(len(one) <= level for one in bodies):
        return "unknown"
    own, when_s = path[level], call.created_s
    if any((one[level].file, one[level].function) != (own.file, own.function) for one in bodies):
        alone = len(path) == 1 and all(len(one) == 1 for one in bodies)
        if not alone:
            return "unknown"
        frames = {one[0] for one in bodies}
        said = source_text.called(own.file, frames, own.function, when_s)
        return said if said != "unknown" else source_text.calls_the_loop(own, frames, when_s)
    said = source_text.place(own.file, (one[level].line for one in bodies), own.line, when_s)
    deeper = _loop_further_in(bodies, level, when_s)
    if said in {"inside", "leaves"} and deeper is not False:
        return "unknown"  # The loop may be the one further in, which the call is outside of in any case.
    if said == "no loop":
        return "outside" if deeper else "unknown"
    return said


def _loop_further_in(bodies: list[tuple[Frame, ...]], level: int, when_s: float | None) -> bool | None:
    """Whether one loop below the frame that all share at `level` holds all calls; None where no text tells."""
    while len({one[level] for one in bodies}) == 1 and all(len(one) > level + 1 for one in bodies):
        level += 1
        first = bodies[0][level]
        if any((one[level].file, one[level].function) != (first.file, first.function) for one in bodies):
            return False
        said = source_text.place(first.file, (one[level].line for one in bodies), first.line, when_s)
        if said != "no loop":
            return None if said == "unknown" else True
    return False


def _branches(one: Call, other: Call) -> bool:
    """Whether the program has the two lines in an `if` and its `else`."""
    for left, right in zip(one.stack[::-1], other.stack[::-1], strict=False):
        if left != right:
            same = (left.file, left.function) == (right.file, right.function)
            return same and source_text.exclusive(left.file, left.line, right.line, other.created_s)
    return False


def _near(call: Call, body: list[Call]) -> bool:
    """Whether it stands so near behind the loop's calls, in their function, that it may be in an `if` of the loop."""
    path, bodies = call.stack[::-1], [one.stack[::-1] for one in body]
    level = len(path) - 1
    if level < 0 or any(len(one) <= level or one[:level] != path[:level] for one in bodies):
        return False
    own, last = path[level], max((one[level] for one in bodies), key=lambda frame: frame.line)
    same = (own.file, own.function) == (last.file, last.function)
    return same and own.line - last.line in _NEAR_LINES


def _callers_unknown(call: Call, body: list[Call]) -> bool:
    """Whether only the innermost line was recorded, and it is in another function: its caller may be in the loop."""
    if len(call.stack) != 1 or call.region or any(len(one.stack) != 1 for one in body):
        return False
    return all(one.stack[0].function != call.stack[0].function for one in body)


def _left_loop(call: Call, inside: Call, body: list[Call]) -> tuple[bool, float]:
    """Whether a call stands outside the loop that `body` is one round of, and how sure that is.

    All calls of a loop come through the same outer frames. A call that comes through them, and through one
    more that the loop uses, is within; one that parts from them earlier is outside. Where the stacks do not
    say, names do: a barrier, an evaluation, a checkpoint mostly come after a loop.
    """
    shared = _outer(body)
    path = call.stack[::-1]
    common = 0
    while common < min(len(shared), len(path)) and shared[common] == path[common]:
        common += 1
    if common < len(shared) and common < len(path):
        ours, theirs = path[common], shared[common]
        later = (ours.file, ours.function) == (theirs.file, theirs.function) and ours.line > theirs.line
        return (True, 0.85) if not later or _outside(call, inside) else (False, 0.7)
    if len(path) > len(shared) + 1 and any(path[len(shared)] in one.stack[1:] for one in body):
        return False, 0.85
    return (True, 0.8) if _outside(call, inside) else (False, 0.75)


def _outer(body: list[Call]) -> list[Frame]:
    """Frames through which every call of a loop comes, outermost first, without the calls' own lines."""
    stacks = [one.stack[:0:-1] for one in body]
    shared: list[Frame] = []
    for frames in zip(*stacks, strict=False):
        if any(frame != frames[0] for frame in frames):
            break
        shared.append(frames[0])
    return shared


def _outside(call: Call, inside: Call) -> bool:
    """Whether a call stands behind the loop of `inside` rather than in it: a barrier, an evaluation, a checkpoint."""
    if call.wire.op == "barrier" and inside.wire.op != "barrier":
        return True
    shared = {frame.function for frame in inside.stack}
    places = [call.region, *(frame.function for frame in call.stack if frame.function not in shared)]
    return any(_OUTSIDE.search(place) for place in places if place)


def replaces(one: Call, other: Call) -> bool:
    """Whether it is the same tensors handed to another operation in the same function: two branches of one `if`."""
    if not one.site or not other.site or one.site.function != other.site.function:
        return False
    return (one.wire.amounts, one.wire.dtypes) == (other.wire.amounts, other.wire.dtypes)
