"""Gradients are reduced in many tiny buckets, so most of the time is the fixed cost of a collective."""

from collections.abc import Sequence
from statistics import median

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.state_calls import MANY, MOST, tiny, total_bytes
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding

_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the reductions of the last backward pass of each step."""
    steps = view.reductions
    calls = [call for call in steps.sample.last() if call.message.op == "all_reduce"]
    count, small, size = len(calls), tiny(calls, 0), total_bytes(calls)
    good_count = shared.good_buckets(size)
    if count < MANY or (size and small < MOST * count) or count < 2 * good_count:
        return _TEXTS.ruled_out(tiny=small, count=count)
    exposed = steps.typical(lambda step: sum(call.exposed_transfer for call in step.last())) / MS
    if not size and view.worth(exposed):
        return shared.unsized(view, exposed, count)  # How long they take says little: links differ by a factor of 100.
    cap_mb, declared = shared.bucket_cap(view, size)
    gain = steps.typical(lambda step: _merge_gain(view, step.last(), step.backward))
    seen, fixed = (
        shared.portions(count, "reductions", size),
        shared.TEXTS.phrase("fixed_cost", us=view.latency_ns / 1000),
    )
    facts = shared.costly(view, gain, _TEXTS, seen=seen, count=count, cap_mb=cap_mb, declared=declared)
    return shared.judged(view, facts, _TEXTS.phrase("shown", seen=seen, good_count=good_count), fixed)


def _merge_gain(view: Overview, calls: Sequence[CallProfile], backward: int) -> float:
    if not calls:
        return 0.0
    spared = max(0, len(calls) - shared.good_buckets(total_bytes(calls)))
    fixed = spared * min(view.latency_ns, median(call.transfer for call in calls)) / MS
    return min(fixed, shared.bucket_gain(view, calls, backward)) if view.on_device else fixed


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_backward,))
