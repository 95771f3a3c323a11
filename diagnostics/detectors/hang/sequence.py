"""What kind of difference it is: compares the calls of two ranks of one group around their first divergence.

By content, call site, period and program order, never by position alone: a rank that leaves one call out
meets every later one of its peers at the wrong position. Knows two lists of calls, no ranks.
"""

import re
from dataclasses import dataclass
from typing import Literal

from diagnostics.evidence.calls import ROOTED, Call
from diagnostics.evidence.model import Frame

Kind = Literal["signature", "operation", "skipped", "extra", "fewer", "more", "bucket"]
"""What the second rank did: other arguments, another operation, left calls out, added some, ran fewer or more
steps, never had a gradient bucket ready."""
_LONGEST_SHIFT = 64
_LONGEST_SEARCH = 256
"""Positions before the first misfit among which the call that was left out or added is looked for."""
_OUTSIDE = re.compile(r"eval|valid|test|save|checkpoint|finish|final|teardown|destroy|shutdown|export|epoch_end", re.I)
_BACKWARD = "backward"
_BRANCH_LINES = 4
"""Two branches of one `if` stand this near to each other."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How the second rank differs from the first."""

    kind: Kind
    confidence: float
    calls: tuple[Call, ...]
    """The calls left out or added; for other kinds the two that meet."""
    why: str
    """One clause that says what gave it away."""
    aligned: bool = False
    """Whether later calls of both agree again, which proves the kind."""


def origin(usual: list[Call], odd: list[Call], seq: int) -> int:
    """Where the two really parted: calls from other lines may fit each other for a while before two do not.

    Other lines alone are no divergence: branches may issue the same call, and it completes. It is one where a call
    left out or added there lines all the later lines up again, those at `seq` among them.
    """
    theirs = {call.seq: place for place, call in enumerate(odd)}
    places = [
        (place, theirs[call.seq])
        for place, call in enumerate(usual)
        if seq - _LONGEST_SEARCH <= call.seq < seq and call.seq in theirs
    ]
    best: tuple[int, int] | None = None
    for mine, other in places:
        one, two = usual[mine], odd[other]
        if one.site is None or two.site is None or one.site == two.site:
            continue
        found = _shift(usual[mine:], odd[other:])
        if found is not None and found.kind in {"skipped", "extra"}:
            # A longer shift from an earlier, harmless place fits too: the fewest calls left out or added explain it.
            best = min(best or (len(found.calls), one.seq), (len(found.calls), one.seq))
    return best[1] if best is not None else seq


def compare(usual: list[Call], odd: list[Call], seq: int) -> Difference:
    """Compare from position `seq`, where both have a call and the two differ."""
    ours = [call for call in usual if call.seq >= seq]
    theirs = [call for call in odd if call.seq >= seq]
    before = [call for call in odd if call.seq < seq]
    expected, got = ours[0], theirs[0]
    if _same_call(expected, got):
        return Difference("signature", 1.0, (expected, got), "the same line of code")
    for found in (
        _shift(ours, theirs),
        _bucket(expected, got, before),
        _accumulation(expected, got, before),
        _period(expected, got, before, usual),
        _program_order(expected, got, before),
    ):
        if found is not None:
            return found
    if expected.wire.op == got.wire.op:
        return Difference("signature", 0.7, (expected, got), "the same operation")
    return Difference("operation", 0.8, (expected, got), "different operations at the same position")


def _same_call(one: Call, other: Call) -> bool:
    """The same operation from the same line, or one that differs in root or ReduceOp only."""
    if one.wire.op != other.wire.op:
        return False
    if one.site and other.site:
        if one.site == other.site and one.stack[1:3] == other.stack[1:3]:
            return True
        same_payload = (one.wire.amounts, one.wire.dtypes) == (other.wire.amounts, other.wire.dtypes)
        return same_payload and (one.wire.op in ROOTED or one.wire.reduce_op != other.wire.reduce_op)
    return one.wire.op in ROOTED


def _token(call: Call) -> tuple[object, ...]:
    return (call.wire, call.site)


def _shift(ours: list[Call], theirs: list[Call]) -> Difference | None:
    """Both issued more calls after the divergence: which shift makes them meet again?"""
    a, b = [_token(call) for call in ours[:512]], [_token(call) for call in theirs[:512]]
    enough = 1 if ours[0].site and theirs[0].site else 2
    best: tuple[int, int, str] | None = None
    for by in range(1, _LONGEST_SHIFT):
        for side, left, right in (("skipped", a[by:], b), ("extra", a, b[by:])):
            match = _agreement(left, right)
            if match >= enough and (best is None or match > best[0]):
                best = (match, by, side)
    replaced = _agreement(a[1:], b[1:])
    if best is None or replaced >= best[0]:
        if replaced < enough:
            return None
        return Difference("operation", 0.95, (ours[0], theirs[0]), f"the next {_calls(replaced)} again", True)
    match, by, shift = best
    kind: Kind = "skipped" if shift == "skipped" else "extra"
    why = f"without {'them' if by > 1 else 'it'} the next {_calls(match)} again"
    return Difference(kind, 0.97, tuple((ours if kind == "skipped" else theirs)[:by]), why, True)


def _calls(number: int) -> str:
    return "call agrees" if number == 1 else f"{number} calls agree"


def _agreement(left: list[tuple[object, ...]], right: list[tuple[object, ...]]) -> int:
    """Calls that agree when the two lists start together; 0 unless all that both have do."""
    size = min(len(left), len(right))
    return size if size and left[:size] == right[:size] else 0


def _bucket(expected: Call, got: Call, before: list[Call]) -> Difference | None:
    """The one side waits for a bucket of gradients, the other left backward without it."""
    if _in_backward(expected) and not _in_backward(got):
        same_step = expected.step is not None and expected.step == got.step
        began = bool(before) and _in_backward(before[-1])
        if same_step or began:
            confidence = 0.85 if began else 0.7
            return Difference("bucket", confidence, (expected,), "it left backward without this bucket")
    return None


def _in_backward(call: Call) -> bool:
    return call.region.startswith(_BACKWARD) or any(_BACKWARD in frame.function for frame in call.stack[:6])


def _accumulation(expected: Call, got: Call, before: list[Call]) -> Difference | None:
    """It goes through the same calls once more within one step, as with another boundary of gradient accumulation."""
    if got.step is None or got.step != expected.step:
        return None
    for back, call in enumerate(reversed(before[-_LONGEST_SHIFT:]), 1):
        if call.step != got.step or _token(call) == _token(expected):
            return None
        if _token(call) == _token(got):
            again = "call" if back == 1 else f"{back} calls"
            return Difference("more", 0.85, (got,), f"it goes through the same {again} again within step {got.step}")
    return None


def period_of(tokens: list[tuple[object, ...]]) -> int:
    """Length of the shortest pattern that the list ends in at least twice; 0 = none."""
    for size in range(1, min(len(tokens) // 2, 512) + 1):
        if tokens[-size:] == tokens[-2 * size : -size]:
            return size
    return 0


def _period(expected: Call, got: Call, before: list[Call], usual: list[Call]) -> Difference | None:
    """A loop repeats the same calls: who goes on with it, and who leaves it?"""
    tokens = [_token(call) for call in before]
    size = period_of(tokens)
    if not size:
        return None
    loop = tokens[-size:]
    goes_on, leaves = _token(expected) == loop[0], _token(got) == loop[0]
    body = before[-size:]
    if goes_on and not leaves:
        if _token(got) in loop:
            count = loop.index(_token(got))
            why = f"its next call is the one {count} later in the loop"
            return Difference("skipped", 0.85, (expected, *body[1:count]), why)
        left, confidence = _left_loop(got, expected, body)
        if left:
            return Difference("fewer", confidence, (expected, got), f"after {len(before)} equal calls it left the loop")
        if _replaces(expected, got):
            return None
        return Difference("extra", confidence, (got,), "no rank made this call before")
    if leaves and not goes_on:
        if _token(expected) in loop:
            return Difference("extra", 0.8, (got,), "its peers are already further in the loop")
        left, confidence = _left_loop(expected, got, body)
        if left:
            return Difference("more", confidence, (got, expected), f"after {len(before)} equal calls only it goes on")
        if _replaces(expected, got):
            return None
        return Difference("skipped", confidence, (expected,), "it goes on with the loop without it")
    return None


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


def _replaces(one: Call, other: Call) -> bool:
    """The same tensors handed to another operation in the same function: two branches of one `if`."""
    if not one.site or not other.site or one.site.function != other.site.function:
        return False
    return (one.wire.amounts, one.wire.dtypes) == (other.wire.amounts, other.wire.dtypes)


def program_order(one: tuple[Frame, ...], other: tuple[Frame, ...]) -> int:
    """-1 when the first stack is at an earlier line of the innermost function they share, 1 at a later, 0 unknown."""
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if (left.file, left.function) != (right.file, right.function):
            return 0
        if left.line != right.line:
            return -1 if left.line < right.line else 1
    return 0


def _beside(one: Call, other: Call) -> bool:
    """Whether two calls stand in the same function, as near to each other as the branches of an `if`."""
    if not one.site or not other.site or one.stack[1:] != other.stack[1:]:
        return False
    same = (one.site.file, one.site.function) == (other.site.file, other.site.function)
    return same and abs(one.site.line - other.site.line) <= _BRANCH_LINES


def _program_order(expected: Call, got: Call, before: list[Call]) -> Difference | None:
    """In straight code, who stands at a later line has passed the earlier one."""
    order = program_order(got.stack, expected.stack)
    if order > 0:
        return Difference("skipped", 0.85, (expected,), "it is already past that line")
    if order < 0:
        if _replaces(expected, got) or expected.wire.op == got.wire.op:
            kind: Kind = "signature" if expected.wire.op == got.wire.op else "operation"
            return Difference(kind, 0.9, (expected, got), "two branches of the same function")
        if _beside(expected, got) and _token(expected) not in {_token(call) for call in before}:
            return Difference("operation", 0.75, (expected, got), "neither side is known to come to the other's call")
        return Difference("extra", 0.75, (got,), "its peers have passed that line")
    return None
