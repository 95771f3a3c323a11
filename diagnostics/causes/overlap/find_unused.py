"""DDP searches the graph for unused parameters in every step."""

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.state_calls import StepReductions
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding

_BITMAP_ELEMENTS = 1_000_000  # DDP reduces one int32 per parameter tensor; no model has a million of them.
_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the search on the host and the reduction of the bitmap of used parameters."""
    steps, declared = view.reductions, view.declared("strategy.find_unused_parameters")
    search = view.typical_ms(lambda profile: profile.search_ns)
    if declared is False or (search == 0 and not (declared and steps.typical(lambda step: len(_bitmaps(step))))):
        return _TEXTS.ruled_out()
    reduction = steps.typical(lambda step: sum(call.exposed_transfer for call in _bitmaps(step)) / MS)
    shown = _TEXTS.phrase("shown", search=search, reduction=reduction)
    return shared.judged(view, shared.costly(view, search + reduction, _TEXTS), shown)


def _bitmaps(step: StepReductions) -> list[CallProfile]:
    return [
        call
        for call in step.inside + step.after
        if call.message.dtype in ("int", "int32") and call.message.elements <= _BITMAP_ELEMENTS
    ]


CAUSE = shared.step_cause(__file__, decide, unless=(shared.no_backward,))
