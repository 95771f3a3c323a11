"""What kind of difference it is: compares the calls of two ranks of one group around their first divergence.

By content, call site, period and program order, never by position alone: a rank that leaves one call out
meets every later one of its peers at the wrong position. Knows two lists of calls, no ranks.
"""

from diagnostics.analysis.divergence.buckets import never_ready
from diagnostics.analysis.divergence.difference import Difference, Kind, token
from diagnostics.analysis.divergence.loops import leaves, replaces
from diagnostics.evidence.calls import ROOTED, Call
from diagnostics.evidence.model import Frame

_LONGEST_SHIFT = 64
_LONGEST_SEARCH = 256
"""Positions before the first misfit among which the call that was left out or added is looked for."""
_BRANCH_LINES = 4
"""Two branches of one `if` stand this near to each other."""


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
        never_ready(ours, theirs, before),
        _accumulation(expected, got, before),
        leaves(expected, got, before),
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


def _shift(ours: list[Call], theirs: list[Call]) -> Difference | None:
    """Both issued more calls after the divergence: which shift makes them meet again?"""
    a, b = [token(call) for call in ours[:512]], [token(call) for call in theirs[:512]]
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


def _accumulation(expected: Call, got: Call, before: list[Call]) -> Difference | None:
    """It goes through the same calls once more within one step, as with another boundary of gradient accumulation."""
    if got.step is None or got.step != expected.step:
        return None
    for back, call in enumerate(reversed(before[-_LONGEST_SHIFT:]), 1):
        if call.step != got.step or token(call) == token(expected):
            return None
        if token(call) == token(got):
            again = "call" if back == 1 else f"{back} calls"
            return Difference("more", 0.85, (got,), f"it goes through the same {again} again within step {got.step}")
    return None


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
        if replaces(expected, got) or expected.wire.op == got.wire.op:
            kind: Kind = "signature" if expected.wire.op == got.wire.op else "operation"
            return Difference(kind, 0.9, (expected, got), "two branches of the same function")
        if _beside(expected, got) and token(expected) not in {token(call) for call in before}:
            return Difference("operation", 0.75, (expected, got), "neither side is known to come to the other's call")
        return Difference("extra", 0.75, (got,), "its peers have passed that line")
    return None
