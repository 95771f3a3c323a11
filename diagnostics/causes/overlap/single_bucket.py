"""One reduction holds all gradients, so it can only start when the last gradient is ready."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.state_calls import MANY, MOST, StepReductions, large, share_of, total_bytes
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding

_LATE = 0.75  # Share of backward before which a bucket that does not hold all gradients should have started.
_FIRST_BUCKET_BYTES = 1 << 20
"""Size of DDP's first bucket by default, so that communication starts early (Li et al. 2020); none is smaller."""
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the reductions of the last backward pass of each step."""
    steps, last = view.reductions, view.reductions.sample.last()
    count = steps.typical(lambda step: len(large(step.last())))
    # DDP's first step reduces everything at once and only then cuts buckets, hence most of the steps.
    if not count or not steps.mostly(_is_single):
        return _TEXTS.ruled_out("several", large=round(count), total=len(last))
    size = total_bytes(last)
    if 0 < size <= _FIRST_BUCKET_BYTES:
        return _TEXTS.ruled_out("small", size=size)
    if view.traits.library and not view.on_device:
        return _TEXTS.ruled_out("waits", library=view.traits.library)
    seen = _TEXTS.phrase("seen" if size else "seen_unknown", size=size)
    cap_mb, declared = shared.bucket_cap(view, size)
    cost = steps.typical(lambda step: shared.bucket_gain(view, step.last(), step.backward))
    shown = _TEXTS.phrase("shown", seen=seen, begins=_begins(steps.sample))
    facts = shared.costly(view, cost, _TEXTS, seen=seen, cap_mb=cap_mb, declared=declared)
    if not size and view.worth(cost):
        return shared.unsized(view, cost, len(last))  # It may be DDP's first bucket, as a small model has no other.
    return shared.judged(view, facts, shown)


def _begins(step: StepReductions) -> float:
    """Return when the largest reduction starts, as a share of backward."""
    calls = step.last()
    first, end = step.span
    if not calls or end <= first:
        return 0.0
    biggest = max(calls, key=lambda call: (share_of(call, calls), call.start))
    return min(1.0, max(0.0, (biggest.start - first) / (end - first)))


def _is_single(step: StepReductions) -> bool:
    calls = step.last()
    return (
        len(large(calls)) == 1
        and max(share_of(call, calls) for call in calls) >= MOST
        and len(calls) < MANY
        # One that carries everything waits for the last gradient, whatever share of backward its own wait then is.
        and (len(calls) == 1 or _begins(step) >= _LATE)
        and not any(call.message.op == "reduce_scatter" for call in calls)
    )


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_backward,))
