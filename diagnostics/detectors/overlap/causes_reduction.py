"""How gradients are reduced: in every micro-batch, in one bucket, in many, one by one, with a search for unused."""

from collections.abc import Callable
from statistics import median

from diagnostics.detectors.overlap import attainable
from diagnostics.detectors.overlap.decide import (
    call_sites,
    confirmed,
    figure,
    megabytes,
    of_step,
    override,
    ruled_out,
    too_little,
    undecided,
)
from diagnostics.detectors.overlap.overview import MS, Overview
from diagnostics.detectors.overlap.reductions import (
    Reduced,
    StepReductions,
    find,
    large,
    latency,
    share_of,
    total_bytes,
)
from diagnostics.evidence.model import Evidence
from diagnostics.findings import Finding, Remedy

_MANY = 8
"""Reductions from which on they are many."""
_TINY_BYTES = 1 << 20
_TINY_NS = 150_000
"""Where sizes are unknown, a reduction shorter than that is tiny."""
_LATE = 0.75
"""Of backward, before which a single bucket should have started."""
_MOST = 0.8
_BITMAP_ELEMENTS = 1_000_000
_INTEGERS = ("int", "int32")

Steps = dict[int, list[StepReductions]]


def decide(view: Overview, evidence: Evidence) -> list[Finding]:
    """All causes of this family."""
    steps = {one.rank: find(view, one) for one in view.profiles}
    if not any(steps.values()):
        return [_no_backward(view, cause) for cause in CAUSES]
    return [
        _accumulation(view, steps),
        _single_bucket(view, steps),
        _small_buckets(view, steps),
        _unbucketed(view, steps, evidence),
        _find_unused(view, steps),
    ]


CAUSES = (
    "overlap.accumulation_sync",
    "overlap.single_bucket",
    "overlap.small_buckets",
    "overlap.unbucketed",
    "overlap.find_unused",
)


def _no_backward(view: Overview, cause: str) -> Finding:
    if not any(one.calls for one in view.profiles):
        return ruled_out(cause, "0 collectives in the trace")
    return undecided(
        cause,
        "The trace does not show when backward runs, so reductions cannot be told from other collectives.",
        "a profiler trace with CPU activity: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    )


def _typical(steps: Steps, amount: Callable[[StepReductions], float]) -> float:
    """Median over steps of a rank, then over ranks."""
    ranks = [median(amount(step) for step in ones) for ones in steps.values() if ones]
    return median(ranks) if ranks else 0.0


def _price(view: Overview, ones: list[Reduced]) -> float:
    """What needless reductions cost, ms: on CPU the transfer takes the cores that compute needs."""
    return sum(one.exposed if view.on_device else one.transfer for one in ones) / MS


def _accumulation(view: Overview, steps: Steps) -> Finding:
    cause = "overlap.accumulation_sync"
    micros = round(_typical(steps, lambda step: step.micros))
    if micros < 2:
        return ruled_out(cause, f"{micros} micro-batch a step")
    repeated = _typical(steps, lambda step: len(_needless(step)))
    if not repeated:
        return ruled_out(cause, f"gradients are reduced in 1 of {micros} micro-batches")
    cost = _typical(steps, lambda step: _price(view, _needless(step)))
    if not view.worth(cost):
        return too_little(view, cause, cost, f"reduced in each of {micros} micro-batches")
    sample = _sample(steps)
    needless = _needless(sample)
    size = f", {megabytes(total_bytes(needless))} for nothing" if total_bytes(needless) else ""
    sharded = any(one.call.message.op == "reduce_scatter" for one in needless)
    code = (
        "call `set_requires_gradient_sync(False)` on the FSDP model in all micro-batches but the last"
        if sharded
        else "run all micro-batches but the last inside `with model.no_sync():`"
    )
    size_now = view.declared("train.micro_batch_size") or 1
    return confirmed(
        view,
        cause,
        f"Gradients are reduced in each of {micros} micro-batches; only the last one needs it. "
        f"That costs up to {of_step(view, cost)}.",
        cost,
        details=[f"{len(needless)} of {len(sample.inside)} reductions of a step precede the last micro-batch{size}"],
        remedies=[
            override(
                view, f"train.micro_batch_size={size_now * micros}", "one micro-batch needs one reduction", code, cost
            )
        ],
    )


def _needless(step: StepReductions) -> list[Reduced]:
    """Reductions before the last micro-batch, when they repeat what the last one reduces."""
    last = [one.call.message.size_bytes for one in step.last()]
    early = [one for one in step.inside if one.call.micro < step.micros - 1]
    if not last or len(early) < 0.5 * len(last) * (step.micros - 1):
        return []
    if sum(one.call.message.size_bytes for one in early) < 0.5 * sum(last) * (step.micros - 1):
        return []
    return early


def _sample(steps: Steps) -> StepReductions:
    ones = next(ones for ones in steps.values() if ones)
    return ones[len(ones) // 2]


def _single_bucket(view: Overview, steps: Steps) -> Finding:
    cause = "overlap.single_bucket"
    sample = _sample(steps)
    count = _typical(steps, lambda step: len(large(step.last())))
    if not count:
        return ruled_out(cause, "0 reductions during backward")
    single = _typical(steps, lambda step: float(_is_single(step)))
    if single < 0.5:
        return ruled_out(cause, f"{count:.0f} large reductions during backward, {len(sample.last())} in all")
    cost = _typical(steps, lambda step: _bucket_gain(view, step.last(), step.backward))
    size = total_bytes(sample.last())
    what = f"1 reduction of {megabytes(size)}" if size else "1 reduction"
    if not view.worth(cost):
        return too_little(view, cause, cost, what)
    cap, declared = _bucket_cap(view, size)
    return confirmed(
        view,
        cause,
        f"All gradients are reduced at once at the end of backward{declared}, so nothing runs beside it: "
        f"up to {of_step(view, cost)}.",
        cost,
        details=[f"{what} a step begins after {_begins(sample):.0%} of backward"],
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
        and len(ones) < _MANY
        # One that carries everything waits for the last gradient, whatever share of backward its own wait then is.
        and (len(ones) == 1 or _begins(step) >= _LATE)
        and not any(one.call.message.op == "reduce_scatter" for one in ones)
    )


def _bucket_gain(view: Overview, ones: list[Reduced], backward: int) -> float:
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


def _small_buckets(view: Overview, steps: Steps) -> Finding:
    cause = "overlap.small_buckets"
    sample = _sample(steps)
    ones = [one for one in sample.last() if one.call.message.op == "all_reduce"]
    tiny = sum(map(_is_tiny, ones))
    size = total_bytes(ones)
    wanted = attainable.good_buckets(size)
    if len(ones) < _MANY or tiny < _MOST * len(ones) or len(ones) < 2 * wanted:
        return ruled_out(cause, f"{tiny} of {len(ones)} reductions of a backward pass are tiny")
    cost = _typical(steps, lambda step: _merge_gain(view, step.last(), step.backward))
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
    return min(fixed, _bucket_gain(view, ones, backward)) if view.on_device else fixed


def _unbucketed(view: Overview, steps: Steps, evidence: Evidence) -> Finding:
    cause = "overlap.unbucketed"
    sample = _sample(steps)
    count = round(_typical(steps, lambda step: len(step.after)))
    inside = round(_typical(steps, lambda step: len(step.last())))
    if count < _MANY or count < inside:
        return ruled_out(cause, f"{count} reductions between backward and optimizer")
    cost = _typical(steps, lambda step: _bucket_gain(view, step.after, step.backward))
    if not view.worth(cost):
        return too_little(view, cause, cost, f"{count} reductions after backward")
    size = total_bytes(sample.after)
    where = call_sites(evidence, "all_reduce")
    place = f" ({where[0].file}:{where[0].line})" if where else ""
    return confirmed(
        view,
        cause,
        f"{count} gradients are reduced one by one after backward{place}, with nothing beside them: "
        f"up to {of_step(view, cost)}.",
        cost,
        details=[f"{count} reductions{' of ' + megabytes(size) if size else ''} a step, all issued after backward"],
        where=where,
        remedies=[_wrap(cost, view, where[0].file + f":{where[0].line}" if where else "")],
    )


def _wrap(cost: float, view: Overview, place: str) -> Remedy:
    return Remedy(
        "code",
        f"remove the loop of all_reduce{' at ' + place if place else ''} and wrap the model in DistributedDataParallel",
        "it reduces buckets of gradients while backward still runs",
        f"at most {of_step(view, cost)}",
    )


def _find_unused(view: Overview, steps: Steps) -> Finding:
    cause = "overlap.find_unused"
    declared = view.declared("strategy.find_unused_parameters")
    search = view.typical_ms(lambda one: one.search_ns)
    bitmap = _typical(steps, lambda step: sum(_is_bitmap(one) for one in step.inside + step.after))
    if declared is False or (search == 0 and not (declared and bitmap)):
        return ruled_out(cause, "no search for unused parameters in the trace")
    reduce_ms = _typical(steps, lambda step: sum(o.exposed for o in step.inside + step.after if _is_bitmap(o)) / MS)
    cost = search + reduce_ms
    if not view.worth(cost):
        return too_little(view, cause, cost, "the graph is searched in every step")
    return confirmed(
        view,
        cause,
        f"DDP searches the graph for unused parameters in every step: up to {of_step(view, cost)}.",
        cost,
        details=[
            f"search {figure(search)} ms on the host, reduction of the map of used parameters {figure(reduce_ms)} ms"
        ],
        remedies=[
            override(
                view,
                "strategy.find_unused_parameters=false",
                "if every parameter gets a gradient in every step; otherwise `static_graph` searches only once",
                "pass `find_unused_parameters=False` (or `static_graph=True`) to DistributedDataParallel",
                cost,
            )
        ],
    )


def _is_bitmap(one: Reduced) -> bool:
    message = one.call.message
    return message.dtype in _INTEGERS and message.elements <= _BITMAP_ELEMENTS
