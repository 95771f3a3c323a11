"""There is more to communicate than compute to hide it, so no schedule can hide it."""

from collections.abc import Callable

from msgspec import Struct

from diagnostics.analysis.step_profile.attainable import attainable_percent
from diagnostics.analysis.step_profile.overview import SHARE, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.reductions import TINY_BYTES
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding
from diagnostics.contract.strategy_traits import strategy_traits

_HEALTHY = max(SHARE, 0.05)
"""Exposed transfer below that share of the step is healthy, whatever the ratio."""
_NEAR_BOUND = 0.7
"""Of what is attainable, from which on a schedule counts as good."""
_BEYOND = 1.5
"""Transfer over compute from which on it is the bound, however good the schedule."""
_CPU_BEYOND = 2.0
"""On CPU transfers and compute take each other's cores and both look longer: there it has to be so much more."""
_FILLS = 0.5
"""Of the step: transfer that is longer than compute takes more than half of any step that has no idle time. With less
of it the step is limited by what makes it idle."""
_MOST = 0.5
"""Of the transfer, that has to be in collectives whose waiting is known, and whose bytes are what they cost."""


class Schedule(Struct, frozen=True):
    """How good the schedule is against the bound (times in ms a step)."""

    transfer_ms: float
    compute_ms: float
    reached: float
    """Overlap, percent."""
    best: float
    """Overlap that no schedule can exceed, percent."""

    def __str__(self) -> str:
        """Return the figures."""
        return (
            f"overlap {self.reached:.0f} % of at most {self.best:.0f} %, "
            f"transfer {shared.figure(self.transfer_ms)} ms, compute {shared.figure(self.compute_ms)} ms"
        )


_WORDS = shared.words_beside(__file__)


def decide(view: Overview) -> Finding:
    """Decide it by exposed transfer, and transfer against compute."""
    exposed = view.typical_ms(lambda profile: sum(call.exposed_transfer for call in profile.calls))
    transfer = view.typical_ms(lambda profile: sum(call.transfer for call in profile.calls))
    compute = view.typical_ms(lambda profile: profile.window.compute)
    if exposed < _HEALTHY * view.step_ms or not view.step_ms:
        sentence = "exposed transfer {ms} ms of {step_ms} ms a step, healthy below {least:.0%}"
        return shared.ruled_out(
            sentence, ms=shared.figure(exposed), step_ms=shared.figure(view.step_ms), least=_HEALTHY
        )
    reached = 100 * (1 - exposed / transfer) if transfer else 100.0
    schedule = Schedule(transfer, compute, reached, attainable_percent(transfer, compute))
    if not view.split:
        sentence = "One rank alone: its {ms} exposed ms hold waiting as well as transfer ({schedule})."
        return shared.undecided(sentence, shared.ALL_RANKS, ms=shared.figure(exposed), schedule=schedule)
    near = reached >= _NEAR_BOUND * schedule.best or (view.on_device and transfer >= _BEYOND * compute)
    if not near or transfer <= (1.0 if view.on_device else _CPU_BEYOND) * compute:
        return shared.ruled_out("{schedule}", schedule=schedule)
    if transfer < _FILLS * view.step_ms:
        sentence = "{schedule}: the transfer is {share:.0%} of the step"
        return shared.ruled_out(sentence, schedule=schedule, share=transfer / view.step_ms)
    matched = _transfer_ms(view, lambda call: call.floor >= 0 or view.world_size == 1)
    if matched < _MOST * transfer:
        sentence = (
            "{share:.0%} of the transfer is in calls that hold waiting as well, such as send and recv ({schedule})."
        )
        return shared.undecided(sentence, shared.ALL_RANKS, share=1 - matched / transfer, schedule=schedule)
    # A size that is not recorded may be large.
    sized = _transfer_ms(view, lambda call: not 0 < call.message.size_bytes <= TINY_BYTES)
    if sized < _MOST * transfer:
        sentence = "{share:.0%} of the transfer is in collectives so small that their bytes hardly count"
        return shared.ruled_out(sentence, share=1 - sized / transfer)
    if view.crowded:
        ranks, cores = view.crowded
        sentence = (
            "{ranks} ranks share {cores} cores, so a transfer that waits for a core looks like one that takes long "
        )
        missing = "a trace of as many ranks as there are cores, or of the machine that the job is meant for"
        return shared.undecided(sentence + "({schedule}).", missing, ranks=ranks, cores=cores, schedule=schedule)
    run, batch = view.run, 2 * (view.declared("train.global_batch_size") or 1)
    in_buckets = run is not None and strategy_traits(run.manifest, run.config).gradients_in == "buckets"
    facts = shared.costly(
        view,
        exposed,
        _WORDS,
        schedule=schedule,
        beyond=shared.figure(max(0.0, transfer - compute)),
        override="strategy.communication_hook=bf16" if in_buckets else f"train.global_batch_size={batch}",
    )
    return shared.judged(view, facts, str(schedule), confidence=0.8)


def _transfer_ms(view: Overview, chosen: Callable[[CallProfile], bool]) -> float:
    return view.typical_ms(lambda profile: sum(call.transfer for call in profile.calls if chosen(call)))


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_collectives,))
