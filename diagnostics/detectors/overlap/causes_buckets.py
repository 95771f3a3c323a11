"""Gradients that are reduced in one bucket at the end of backward, or in many tiny ones."""

from statistics import median

from diagnostics.analysis.step_profile import attainable
from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.reductions import (
    Reduced,
    StepReductions,
    Steps,
    large,
    latency,
    sample_of,
    share_of,
    total_bytes,
    typical,
)
from diagnostics.contract.findings import Finding
from diagnostics.detectors.overlap.decide import confirmed, figure, megabytes, of_step, override, ruled_out, too_little

MANY = 8
"""Reductions from which on they are many."""
_TINY_BYTES = 1 << 20
_TINY_NS = 150_000
"""Where sizes are unknown, a reduction shorter than that is tiny."""
_LATE = 0.75
"""Of backward, before which a single bucket should have started."""
_MOST = 0.8

FIRST_BUCKET_BYTES = 2**20
"""What DDP reduces first by default, so that communication starts early (Li et al. 2020): nobody splits less."""


def single_bucket(view: Overview, steps: Steps) -> Finding:
    """`overlap.single_bucket`."""
    cause = "overlap.single_bucket"
    sample = sample_of(steps)
    count = typical(steps, lambda step: len(large(step.last())))
    if not count:
        return ruled_out(cause, "0 reductions during backward")
    single = typical(steps, lambda step: float(_is_single(step)))
    if single <= 0.5:  # In its very first step DDP reduces everything at once; it cuts buckets after that.
        return ruled_out(cause, f"{count:.0f} large reductions during backward, {len(sample.last())} in all")
    cost = typical(steps, lambda step: bucket_gain(view, step.last(), step.backward))
    size = total_bytes(sample.last())
    what = f"1 reduction of {megabytes(size)}" if size else "1 reduction"
    if 0 < size <= FIRST_BUCKET_BYTES:
        return ruled_out(cause, f"{what}: DDP's own first bucket is not smaller")
    if not view.worth(cost):
        return too_little(view, cause, cost, what)
    cap, declared = _bucket_cap(view, size)
    return confirmed(
        view,
        cause,
        f"All gradients are reduced at once, when the last one is there{declared}, so nothing runs beside it: "
        f"up to {of_step(view, cost)}.",
        cost,
        details=[f"{what} a step; computing ends after {_begins(sample):.0%} of backward, the rest waits for it"],
        remedies=[
            override(
                view,
                f"strategy.bucket_cap_mb={cap:g}",
                "the first buckets are reduced while backward still runs",
                f"pass `bucket_cap_mb={cap:g}` to DistributedDataParallel",
                cost,
            )
        ],
    )


def _bucket_cap(view: Overview, size_bytes: int) -> tuple[float, str]:
    """The bucket_cap_mb to advise, and in brackets the one that the run's configuration has."""
    now = view.declared("strategy.bucket_cap_mb")
    declared = f" (bucket_cap_mb is {now:g})" if isinstance(now, int | float) else ""
    return (attainable.good_cap_mb(size_bytes) if size_bytes else 25.0), declared


def _begins(step: StepReductions) -> float:
    """When the largest reduction begins, as a share of backward."""
    ones = step.last()
    first, end = step.span
    if not ones or end <= first:
        return 0.0
    biggest = max(ones, key=lambda one: (share_of(one, ones), one.call.start))
    return min(1.0, max(0.0, (biggest.call.start - first) / (end - first)))


def _is_single(step: StepReductions) -> bool:
    ones = step.last()
    return (
        len(large(ones)) == 1
        and max(share_of(one, ones) for one in ones) >= _MOST
        and len(ones) < MANY
        # One that carries everything waits for the last gradient, whatever share of backward its own wait then is.
        and (len(ones) == 1 or _begins(step) >= _LATE)
        and not any(one.call.message.op == "reduce_scatter" for one in ones)
    )


def bucket_gain(view: Overview, ones: list[Reduced], backward: int) -> float:
    """What cutting the bytes well would win, ms."""
    if not ones:
        return 0.0
    transfer = sum(one.transfer for one in ones)
    fixed = min(latency(view), transfer / len(ones))
    pure = max(0.0, transfer - fixed * len(ones))
    buckets = attainable.good_buckets(total_bytes(ones))
    best = attainable.exposed_in_buckets(pure, fixed, buckets, backward)
    return max(0.0, sum(one.exposed for one in ones) - best) / MS


def _is_tiny(one: Reduced) -> bool:
    size = one.call.message.size_bytes
    return size <= _TINY_BYTES if size else one.transfer <= _TINY_NS


def small_buckets(view: Overview, steps: Steps) -> Finding:
    """`overlap.small_buckets`."""
    cause = "overlap.small_buckets"
    sample = sample_of(steps)
    ones = [one for one in sample.last() if one.call.message.op == "all_reduce"]
    tiny = sum(map(_is_tiny, ones))
    size = total_bytes(ones)
    wanted = attainable.good_buckets(size)
    if len(ones) < MANY or tiny < _MOST * len(ones) or len(ones) < 2 * wanted:
        return ruled_out(cause, f"{tiny} of {len(ones)} reductions of a backward pass are tiny")
    cost = typical(steps, lambda step: _merge_gain(view, step.last(), step.backward))
    what = f"{len(ones)} reductions of {megabytes(size / len(ones)) if size else 'unknown size'} on average"
    if not view.worth(cost):
        return too_little(view, cause, cost, what)
    cap, declared = _bucket_cap(view, size)
    return confirmed(
        view,
        cause,
        f"Gradients are reduced in {len(ones)} tiny portions{declared}; most of their time is the fixed cost of a "
        f"collective: up to {of_step(view, cost)}.",
        cost,
        details=[f"{what}; {wanted} would do", f"fixed cost of a collective about {figure(latency(view) / 1000)} us"],
        remedies=[
            override(
                view,
                f"strategy.bucket_cap_mb={cap:g}",
                "fewer and larger reductions",
                f"raise `bucket_cap_mb` of DistributedDataParallel to {cap:g}",
                cost,
            )
        ],
    )


def _merge_gain(view: Overview, ones: list[Reduced], backward: int) -> float:
    """What fewer collectives would win, ms; never more than their fixed costs."""
    if not ones:
        return 0.0
    spared = len(ones) - attainable.good_buckets(total_bytes(ones))
    fixed = max(0, spared) * min(latency(view), median(one.transfer for one in ones)) / MS
    return min(fixed, bucket_gain(view, ones, backward)) if view.on_device else fixed
