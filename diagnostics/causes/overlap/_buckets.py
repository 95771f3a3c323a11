"""Estimates the gain of other gradient buckets, and describes how finely collectives are divided."""

from collections.abc import Sequence

from diagnostics.analysis.step_profile import attainable
from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.reductions import total_bytes
from diagnostics.causes.declared import Texts
from diagnostics.contract.formatting import Phrase

_TEXTS = Texts(__file__)


def bucket_cap(view: Overview, size_bytes: int) -> tuple[float, float | None]:
    """Return the recommended `bucket_cap_mb`, and the one in the run's configuration (None if not set)."""
    now = view.declared("strategy.bucket_cap_mb")
    return attainable.good_cap_mb(size_bytes), now if isinstance(now, int | float) else None


def bucket_gain(view: Overview, calls: Sequence[CallProfile], backward: int) -> float:
    """Return the gain of optimal buckets in ms; `backward` is the duration of the backward pass in ns."""
    if not calls:
        return 0.0
    transfer = sum(call.transfer for call in calls)
    fixed = min(view.latency_ns, transfer / len(calls))
    pure = max(0.0, transfer - fixed * len(calls))
    best = attainable.exposed_in_buckets(pure, fixed, attainable.good_buckets(total_bytes(calls)), backward)
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
