"""What cutting the gradients into other buckets would win."""

from collections.abc import Sequence

from diagnostics.analysis.step_profile import attainable
from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.reductions import total_bytes


def bucket_cap(view: Overview, size_bytes: int) -> tuple[float, float | None]:
    """Return the `bucket_cap_mb` to advise, and the one that the run's configuration has."""
    now = view.declared("strategy.bucket_cap_mb")
    return (attainable.good_cap_mb(size_bytes) if size_bytes else 25.0), now if isinstance(now, int | float) else None


def bucket_gain(view: Overview, calls: Sequence[CallProfile], backward: int) -> float:
    """Return what cutting the bytes well would win, ms, beside a backward pass of so many ns."""
    if not calls:
        return 0.0
    transfer = sum(call.transfer for call in calls)
    fixed = min(view.latency_ns, transfer / len(calls))
    pure = max(0.0, transfer - fixed * len(calls))
    best = attainable.exposed_in_buckets(pure, fixed, attainable.good_buckets(total_bytes(calls)), backward)
    return max(0.0, sum(call.exposed_transfer for call in calls) - best) / MS
