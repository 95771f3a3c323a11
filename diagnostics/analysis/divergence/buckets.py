"""A rank that its peers wait for in the backward pass: was it in that pass, or never entered it? Knows no ranks.

Told by the steps that were recorded, by the number of buckets that DDP announced, by how far the peers are in their
round of different buckets; where none of it says, by what the rank did instead.
"""

from diagnostics.analysis.divergence.difference import Difference, in_backward, token
from diagnostics.analysis.divergence.loops import period_of
from diagnostics.evidence.calls import Call


def never_ready(ours: list[Call], theirs: list[Call], before: list[Call]) -> Difference | None:
    """The one side waits for a bucket of gradients, the other left backward without it.

    Args:
        ours: calls of the side that waits, from that bucket on.
        theirs: calls of the other side, from the same position on.
        before: its calls before.
    """
    expected, got = ours[0], theirs[0]
    if not in_backward(expected) or in_backward(got):
        return None
    same_step = expected.step is not None and expected.step == got.step
    began = bool(before) and in_backward(before[-1])
    if not (same_step or began):
        return None
    if began:
        part = _took_part(ours, before)
        if part is False or (part is None and _went_on(got, before)):
            return None
    why = "it left backward without this bucket"
    return Difference("bucket", 0.85 if began else 0.7, (expected,), why, settled=True)


def _took_part(ours: list[Call], before: list[Call]) -> bool | None:
    """Whether it issued some of the buckets of the step that its peers are in; None where that is not recorded."""
    expected, last = ours[0], before[-1]
    if expected.step is not None and last.step is not None:
        return expected.step == last.step
    size, start = _announced(before)
    if size:
        return sum(in_backward(call) and call.wire.op == "all_reduce" for call in before[start:]) % size != 0
    size = period_of([token(call) for call in before])
    loop = before[-size:]
    if size < 2 or token(loop[0]) != token(expected) or not all(in_backward(call) for call in loop):
        return None
    left = next((number for number, call in enumerate(ours) if not in_backward(call)), len(ours))
    return left % size != 0


def _announced(before: list[Call]) -> tuple[int, int]:
    """Buckets that DDP made anew after its first backward pass, and where its calls with them begin; 0 = unknown.

    Rank 0 then broadcasts two tensors of int32: for each parameter its bucket and one number more, and the buckets'
    sizes (torch, reducer.cpp, sync_bucket_indices). A second pair is that of another model.
    """
    found = []
    for at in range(len(before) - 1):
        one, two = before[at].wire, before[at + 1].wire
        kinds = {one.op, two.op, *one.dtypes, *two.dtypes}
        if kinds != {"broadcast", "int32"} or not len(one.amounts) == len(two.amounts) == 1:
            continue
        if 0 < two.amounts[0] < one.amounts[0]:
            found.append((two.amounts[0], at + 2))
    return found[0] if len(found) == 1 else (0, 0)


def _went_on(got: Call, before: list[Call]) -> bool:
    """Whether its next call is one that it never made before, which is so of a call behind the loop."""
    return token(got) not in {token(call) for call in before}
