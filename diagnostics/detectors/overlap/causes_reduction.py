"""How gradients are reduced: in every micro-batch, one by one, searching for unused (`causes_buckets`: the rest)."""

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.reductions import (
    Reduced,
    StepReductions,
    Steps,
    find,
    sample_of,
    total_bytes,
    typical,
)
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.detectors.overlap.causes_buckets import MANY, bucket_gain, single_bucket, small_buckets
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
from diagnostics.evidence.model import Evidence

_BITMAP_ELEMENTS = 1_000_000
_INTEGERS = ("int", "int32")


def decide(view: Overview, evidence: Evidence) -> list[Finding]:
    """All causes of this family."""
    steps = {one.rank: find(view, one) for one in view.profiles}
    if not any(steps.values()):
        return [_no_backward(view, cause) for cause in CAUSES]
    return [
        _accumulation(view, steps),
        single_bucket(view, steps),
        small_buckets(view, steps),
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


def _price(view: Overview, ones: list[Reduced]) -> float:
    """What needless reductions cost, ms: on CPU the transfer takes the cores that compute needs."""
    return sum(one.exposed if view.on_device else one.transfer for one in ones) / MS


def _accumulation(view: Overview, steps: Steps) -> Finding:
    cause = "overlap.accumulation_sync"
    micros = round(typical(steps, lambda step: step.micros))
    if micros < 2:
        return ruled_out(cause, f"{micros} micro-batch a step")
    repeated = typical(steps, lambda step: len(_needless(step)))
    if not repeated:
        return ruled_out(cause, f"gradients are reduced in 1 of {micros} micro-batches")
    if (unsure := _no_micro_batches(view, steps, micros)) is not None:
        return unsure
    cost = typical(steps, lambda step: _price(view, _needless(step)))
    if not view.worth(cost):
        return too_little(view, cause, cost, f"reduced in each of {micros} micro-batches")
    sample = sample_of(steps)
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


def _no_micro_batches(view: Overview, steps: Steps, micros: int) -> Finding | None:
    """What is said of backward passes that need not be micro-batches of one step; None when they are."""
    cause = "overlap.accumulation_sync"
    updated = round(typical(steps, lambda step: step.updated))
    where = "step" if view.unit == "step" else "window"
    if updated >= micros:
        return ruled_out(cause, f"the optimizer follows each of {micros} backward passes of a {where}")
    if updated == 1 or (updated == 0 and view.unit == "step"):
        return None
    summary = f"Gradients are reduced in each of {micros} backward passes; whether each is a step is not known."
    if updated:
        summary = f"The optimizer follows {updated} of {micros} backward passes of a {where}."
    return undecided(
        cause, summary, "marked steps: torch.profiler.profile(schedule=...) and profiler.step() after each"
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


def _unbucketed(view: Overview, steps: Steps, evidence: Evidence) -> Finding:
    cause = "overlap.unbucketed"
    sample = sample_of(steps)
    count = round(typical(steps, lambda step: len(step.after)))
    inside = round(typical(steps, lambda step: len(step.last())))
    if count < MANY or count < inside:
        return ruled_out(cause, f"{count} reductions between backward and optimizer")
    cost = typical(steps, lambda step: bucket_gain(view, step.after, step.backward))
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
    bitmap = typical(steps, lambda step: sum(_is_bitmap(one) for one in step.inside + step.after))
    if declared is False or (search == 0 and not (declared and bitmap)):
        return ruled_out(cause, "no search for unused parameters in the trace")
    reduce_ms = typical(steps, lambda step: sum(o.exposed for o in step.inside + step.after if _is_bitmap(o)) / MS)
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
