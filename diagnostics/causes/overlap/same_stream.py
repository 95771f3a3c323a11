"""Collectives run on the compute stream, so they cannot overlap with compute."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding

_SHARE = 0.5  # Minimum share of the communication time on the compute stream; the rest can still overlap.
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the streams of the collectives."""
    everything = sum(call.duration for call in view.calls)
    share = sum(call.duration for call in view.calls if _chosen(call)) / everything if everything else 0.0
    if share < _SHARE:
        return _TEXTS.ruled_out("shown", share=share)
    count = round(view.typical_count(lambda profile: sum(map(_chosen, profile.calls))))
    facts = shared.costly(view, shared.exposed_ms(view, _chosen), _TEXTS, share=share, count=count)
    return shared.judged(view, facts, _TEXTS.phrase("shown", share=share))


def _chosen(call: CallProfile) -> bool:
    return call.on_compute and shared.matters(call)


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_collectives, shared.on_cpu("cpu_streams")))
