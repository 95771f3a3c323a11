"""There is more communication than compute, so no schedule can hide it."""

from collections.abc import Callable

from diagnostics.analysis.step_profile.breakdown import attainable_percent
from diagnostics.analysis.step_profile.overview import SHARE, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.state_calls import MANY, TINY_BYTES
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import PROBABLE, Finding

_HEALTHY = max(SHARE, 0.05)  # Share of the step below which exposed transfer is healthy, whatever the ratio.
_NEAR_BOUND = 0.7  # Share of the attainable overlap from which a schedule counts as good.
_BEYOND = 1.5  # Ratio of transfer to compute on a device from which transfer is the bound, whatever the schedule.
_CPU_BEYOND = 2.0
"""The ratio on CPU, which is higher as transfers and compute compete for cores and both appear longer."""
_FILLS = 0.5
"""Share of the step: transfer longer than compute is more than half of any step without idle time. With less
than that, the step is limited by the reason for its idle time."""
_MOST = 0.5
"""Share of the transfer that must be in collectives with known waiting and a cost determined by their bytes."""
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from exposed transfer, and the ratio of transfer to compute."""
    exposed = view.typical_ms(lambda profile: sum(call.exposed_transfer for call in profile.calls))
    transfer = view.typical_ms(lambda profile: sum(call.transfer for call in profile.calls))
    compute = view.typical_ms(lambda profile: profile.window.compute)
    if exposed < _HEALTHY * view.step_ms or not view.step_ms:
        return _TEXTS.ruled_out("healthy", ms=exposed, step_ms=view.step_ms, least=_HEALTHY)
    reached = 100 * (1 - exposed / transfer) if transfer else 100.0
    best = attainable_percent(transfer, compute)
    times = {"transfer_ms": transfer, "compute_ms": compute, "reached": reached, "best": best}
    schedule = _TEXTS.phrase("schedule", **times, most=shared.most_exposed(view), unit=view.unit)
    # A size that was not recorded may be large.
    sized = _transfer_ms(view, lambda call: not 0 < call.message.size_bytes <= TINY_BYTES)
    if sized < _MOST * transfer and not view.reductions:
        return _TEXTS.undecided("small", share=1 - sized / transfer, schedule=schedule)
    if not view.split:
        return _TEXTS.undecided(["alone", "all_ranks"], ms=exposed, schedule=schedule)
    near = reached >= _NEAR_BOUND * best or (view.on_device and transfer >= _BEYOND * compute)
    if not near or transfer <= (1.0 if view.on_device else _CPU_BEYOND) * compute:
        return _TEXTS.ruled_out("hidden", schedule=schedule)
    if transfer < _FILLS * view.step_ms:
        return _TEXTS.ruled_out("small_share", schedule=schedule, share=transfer / view.step_ms)
    matched = _transfer_ms(view, lambda call: call.floor >= 0 or view.world_size == 1)
    if matched < _MOST * transfer:
        return _TEXTS.undecided(["waiting_too", "all_ranks"], share=1 - matched / transfer, schedule=schedule)
    if sized < _MOST * transfer:
        return _TEXTS.ruled_out("tiny", share=1 - sized / transfer)
    unsized = _transfer_ms(view, lambda call: not call.message.size_bytes)
    count = view.reductions.typical(lambda step: len(step.last()))
    if unsized > _MOST * transfer and count >= MANY:
        return shared.unsized(view, exposed, round(count))
    if view.crowded:
        ranks, cores = view.crowded
        return _TEXTS.undecided("crowded", count=ranks, cores=cores, schedule=schedule)
    batch, in_buckets = 2 * (view.declared("train.global_batch_size") or 1), view.traits.gradients_in == "buckets"
    facts = shared.costly(
        view,
        exposed,
        _TEXTS,
        schedule=schedule,
        beyond=max(0.0, transfer - compute),
        override="strategy.communication_hook=bf16" if in_buckets else f"train.global_batch_size={batch}",
    )
    return shared.judged(view, facts, schedule, confidence=PROBABLE)


def _transfer_ms(view: Overview, chosen: Callable[[CallProfile], bool]) -> float:
    return view.typical_ms(lambda profile: sum(call.transfer for call in profile.calls if chosen(call)))


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_collectives,))
