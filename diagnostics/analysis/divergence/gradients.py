"""A rank that its peers wait for in the backward pass: was it in that pass, or did it never enter it?"""

from diagnostics.analysis.divergence.evidence_terms import Term, support
from diagnostics.analysis.divergence.identity import at_line, in_backward
from diagnostics.analysis.divergence.prediction import predict
from diagnostics.evidence.calls import Call


def not_ready(ours: list[Call], theirs: list[Call], before: list[Call]) -> tuple[Term, ...]:
    """Return the evidence that a rank left the backward pass without a bucket that its peers wait for; else nothing.

    Args:
        ours: calls of the side that waits, from that bucket on.
        theirs: calls of the other side, from the same position on.
        before: its calls before.
    """
    expected, got = ours[0], theirs[0]
    if not in_backward(expected) or in_backward(got):
        return ()
    if not before or not in_backward(before[-1]):
        same_step = expected.step is not None and expected.step == got.step
        return (support("backward begun"),) if same_step else ()
    part = _took_part(ours, before)
    if part is None:
        # A call behind the loop is one that the rank never made before.
        part = at_line(got) in {at_line(call) for call in before}
    return (support("round already begun"),) if part else ()


def _took_part(ours: list[Call], before: list[Call]) -> bool | None:
    """Whether it issued some of the buckets of the step that its peers are in; None where that is not recorded."""
    expected, last = ours[0], before[-1]
    if expected.step is not None and last.step is not None:
        return expected.step == last.step
    buckets, start = _announced(before)
    if buckets:
        return sum(in_backward(call) and call.wire.op == "all_reduce" for call in before[start:]) % buckets != 0
    prediction = predict([at_line(call) for call in before], at_line(expected))
    if prediction is None or not prediction.whole or prediction.round < 2:
        return None
    if not all(in_backward(call) for call in before[-prediction.round :]):
        return None
    left = next((number for number, call in enumerate(ours) if not in_backward(call)), len(ours))
    return left % prediction.round != 0


def _announced(before: list[Call]) -> tuple[int, int]:
    """Return how many buckets DDP made after its first backward pass, and where its calls with them begin; 0 = unknown.

    Rank 0 then broadcasts two tensors of int32: for each parameter its bucket and one number more, and the buckets'
    sizes (torch, reducer.cpp, sync_bucket_indices). A second pair is that of another model.
    """
    pairs = []
    for at in range(len(before) - 1):
        first, second = before[at].wire, before[at + 1].wire
        kinds = {first.op, second.op, *first.dtypes, *second.dtypes}
        if kinds != {"broadcast", "int32"} or not len(first.amounts) == len(second.amounts) == 1:
            continue
        if 0 < second.amounts[0] < first.amounts[0]:
            pairs.append((second.amounts[0], at + 2))
    return pairs[0] if len(pairs) == 1 else (0, 0)
