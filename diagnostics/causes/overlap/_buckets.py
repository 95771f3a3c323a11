"""Estimates the gain of other gradient buckets and units, and describes how finely collectives are divided."""

import math
from collections.abc import Sequence

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.state_calls import total_bytes
from diagnostics.causes.declared import Texts
from diagnostics.contract.formatting import Phrase

_TEXTS = Texts(__file__)
MIB = 1 << 20  # Bytes.
DEFAULT_BUCKET_BYTES = 25 * MIB  # Default `bucket_cap_mb` of DistributedDataParallel, in bytes.
_LEAST_BUCKETS = 4  # Minimum number of buckets, so that the last one, which nothing hides, is small.
_LEAST_CAP_MB = 0.05  # Minimum `bucket_cap_mb` that is proposed: smaller buckets cost more latency than they hide.


def bucket_cap(view: Overview, size_bytes: int) -> tuple[float, float | None]:
    """Return the recommended `bucket_cap_mb`, and the one in the run's configuration (None if not set)."""
    now = view.declared("strategy.bucket_cap_mb")
    return good_cap_mb(size_bytes), now if isinstance(now, int | float) else None


def bucket_gain(view: Overview, calls: Sequence[CallProfile], backward: int) -> float:
    """Return the gain of optimal buckets in ms; `backward` is the duration of the backward pass in ns."""
    if not calls:
        return 0.0
    transfer = sum(call.transfer for call in calls)
    fixed = min(view.latency_ns, transfer / len(calls))
    pure = max(0.0, transfer - fixed * len(calls))
    best = exposed_in_buckets(pure, fixed, good_buckets(total_bytes(calls)), backward)
    return max(0.0, sum(call.exposed_transfer for call in calls) - best) / MS


def declared_cap(cap_mb: float | None) -> str:
    """Return ` (bucket_cap_mb is 25)`; empty if the configuration is not known."""
    return "" if cap_mb is None else f" (bucket_cap_mb is {cap_mb:g})"


def portions(count: int, what: str, size_bytes: int) -> Phrase:
    """Return `120 reductions of 1 MiB on average`; a size of 0 bytes means unknown."""
    row = "portions" if size_bytes else "portions_unknown"
    return _TEXTS.phrase(row, count=count, what=what, size=size_bytes / max(1, count))


def fixed_cost(view: Overview) -> Phrase:
    """Return `fixed cost of a collective about 20 us`."""
    return _TEXTS.phrase("fixed_cost", us=view.latency_ns / 1000)


def good_buckets(total_bytes: int) -> int:
    """Return the best number of gradient buckets: those of DDP's default size, and at least `_LEAST_BUCKETS`."""
    return max(_LEAST_BUCKETS, math.ceil(total_bytes / DEFAULT_BUCKET_BYTES))


def good_cap_mb(total_bytes: int) -> float:
    """Return the `bucket_cap_mb` that results in the number of buckets of `good_buckets`; for 0 bytes the default."""
    cap = total_bytes / MIB / good_buckets(total_bytes) if total_bytes else DEFAULT_BUCKET_BYTES / MIB
    return float(round(cap)) if cap >= 1 else round(max(cap, _LEAST_CAP_MB), 2)


def exposed_in_buckets(transfer: float, latency: float, buckets: int, beside: float) -> float:
    """Return the exposed time of a transfer cut into equal parts that become ready evenly during compute.

    `transfer` excludes `latency`, the fixed time of each part; the last part is ready when the compute `beside` ends.
    """
    each = transfer / buckets + latency
    done = 0.0
    for n in range(1, buckets + 1):
        done = max(done, beside * n / buckets) + each
    return max(0.0, done - beside)


def exposed_in_units(transfer: float, latency: float, units: int, beside: float) -> float:
    """Return the exposed time of units prefetched one ahead of compute; the first gather is always exposed."""
    each, work = transfer / units + latency, beside / units
    return each + (units - 1) * max(0.0, each - work)
