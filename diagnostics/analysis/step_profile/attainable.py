"""The best possible schedule, from measured times in ns: an upper bound on the gain of a fix."""

import math

MIB = 1 << 20  # Bytes.
DEFAULT_BUCKET_BYTES = 25 * MIB  # Default `bucket_cap_mb` of DistributedDataParallel, in bytes.
_LEAST_BUCKETS = 4  # Minimum number of buckets, so that the last one, which nothing hides, is small.
_LEAST_CAP_MB = 0.05  # Minimum `bucket_cap_mb` that is proposed: smaller buckets cost more latency than they hide.


def attainable_percent(transfer: float, compute: float) -> float:
    """Return the overlap in percent that no schedule can exceed: communication concurrent with all of the compute."""
    return 100.0 if transfer <= 0 else 100 * min(transfer, compute) / transfer


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
