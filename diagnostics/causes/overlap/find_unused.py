"""DDP searches the graph for unused parameters in every step."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.analysis.step_profile.profile import CallProfile
from diagnostics.analysis.step_profile.reductions import StepReductions
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import (
    Costly,
    NotIt,
    cost_of,
    figure,
    judged,
    no_backward,
    ruled_out,
    step_cause,
)
from diagnostics.contract.findings import Finding, Remedy

_BITMAP_ELEMENTS = 1_000_000
"""DDP reduces one int32 per parameter tensor; no model has a million of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches(Costly):
    """What the search costs."""

    def seen(self) -> str:
        """Return what was seen."""
        return "the graph is searched in every step"

    def summary(self) -> str:
        """Return what is wrong."""
        return f"DDP searches the graph for unused parameters in every step: up to {self.cost}."

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.override(
            "strategy.find_unused_parameters=false",
            "if every parameter gets a gradient in every step; otherwise `static_graph` searches only once",
            "pass `find_unused_parameters=False` (or `static_graph=True`) to DistributedDataParallel",
        )


@dataclass(frozen=True, slots=True)
class NoSearch(NotIt):
    """There is no search."""

    def measured(self) -> str:
        """Return the value that rules it out."""
        return "no search for unused parameters in the trace"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the search on the host and the reduction of the map of used parameters."""
    cause = CAUSE.id
    if answer := no_backward(view, cause):
        return answer
    steps, declared = view.reductions, view.declared("strategy.find_unused_parameters")
    search = view.typical_ms(lambda one: one.search_ns)
    if declared is False or (search == 0 and not (declared and steps.typical(lambda step: len(_bitmaps(step))))):
        return [ruled_out(cause, NoSearch())]
    reduction = steps.typical(lambda step: sum(call.exposed_transfer for call in _bitmaps(step)) / MS)
    shown = f"search {figure(search)} ms on the host, reduction of the map of used parameters {figure(reduction)} ms"
    return judged(view, cause, Searches(cost=cost_of(view, search + reduction)), shown)


def _bitmaps(step: StepReductions) -> list[CallProfile]:
    return [
        call
        for call in step.inside + step.after
        if call.message.dtype in ("int", "int32") and call.message.elements <= _BITMAP_ELEMENTS
    ]


CAUSE = step_cause(
    id="overlap.find_unused",
    title="the search for unused parameters runs in every step",
    branch="slow.reduction",
    decide=decide,
    decided_from="traces: DDP's search and its reduction of the map of used parameters; configuration",
    remedy="strategy.find_unused_parameters=false",
    example=example("find_unused"),
)
