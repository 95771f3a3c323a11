"""The parameters of a unit are gathered only when compute needs them."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.units import MicroBatch, hidden_share
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import Costly, NotIt, OnCpu, cost_of, judged, ruled_out, step_cause
from diagnostics.causes.overlap._units import Gathers, no_units, per_step_ms
from diagnostics.contract.causes import ExplainedBy
from diagnostics.contract.findings import Finding, Remedy

_NOT_AHEAD = 0.15
"""Share of the gathers' time beside compute up to which no gather ran ahead: what is left are the edges of kernels."""
_LEAST_UNITS = 3
"""Gathers of a forward pass: with fewer there is hardly a next unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAhead(Costly):
    """Phases whose gathers do not run ahead."""

    phases: tuple[str, ...]
    hidden: float
    """Share of the gathers in forward beside compute."""
    depth: int
    """To advise for `strategy.prefetch_depth`."""

    def seen(self) -> str:
        """Return what was seen."""
        return f"{self.hidden:.0%} of the gathers in forward run beside compute"

    def summary(self) -> str:
        """Return what is wrong."""
        where = " and ".join(self.phases)
        return f"Each unit's parameters are gathered only when compute needs them ({where}): up to {self.cost}."

    def remedy(self) -> Remedy:
        """Return how to fix it."""
        return self.cost.override(
            f"strategy.prefetch_depth={self.depth}",
            "the next unit is gathered while this one computes",
            "name the next units with `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch` "
            "(FSDP1: `forward_prefetch=True`, `BackwardPrefetch.BACKWARD_PRE`)",
        )


@dataclass(frozen=True, slots=True)
class Ahead(NotIt):
    """Gathers run ahead."""

    hidden: float

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"{self.hidden:.0%} of the gathers in forward run beside compute"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the share of the gathers that runs beside compute."""
    cause = CAUSE.id
    if answer := no_units(view, cause):
        return answer
    depth, units = view.declared("strategy.prefetch_depth"), view.units
    if not view.on_device and depth != 0:
        return [ruled_out(cause, OnCpu("gathers"))]
    if units.typical(lambda batch: len(batch.gathers)) < _LEAST_UNITS:
        return [ruled_out(cause, Gathers(len(units.sample.gathers)))]
    hidden = {"forward": units.typical(lambda batch: hidden_share(batch.gathers[1:]))}
    if units.sample.again:
        hidden["backward"] = units.typical(lambda batch: hidden_share(batch.again[1:]))
    phases = tuple(name for name, share in hidden.items() if share <= _NOT_AHEAD)
    if not phases:
        return [ruled_out(cause, Ahead(hidden["forward"]))]
    facts = NotAhead(
        cost=cost_of(view, per_step_ms(view, lambda batch: _to_hide(batch, phases))),
        phases=phases,
        hidden=hidden["forward"],
        depth=2 if depth == 1 else 1,
    )
    share = hidden_share(units.sample.gathers[1:])
    return judged(view, cause, facts, f"{share:.0%} of the gathers in forward run beside compute")


def _to_hide(batch: MicroBatch, phases: tuple[str, ...]) -> float:
    """Return the ns of these phases' gathers that could run beside compute; the first of a phase never can."""
    chosen = (batch.gathers[1:] if "forward" in phases else []) + (batch.again[1:] if "backward" in phases else [])
    free = batch.compute - sum(call.overlapped for call in batch.calls)
    return min(sum(call.exposed_transfer for call in chosen), max(0, free))


CAUSE = step_cause(
    id="overlap.no_prefetch",
    title="the next unit is not gathered ahead",
    branch="slow.units",
    decide=decide,
    decided_from="traces: the share of the gathers that runs beside compute",
    remedy="strategy.prefetch_depth=2; do not wait on the host between blocks",
    explained_by=(ExplainedBy(("overlap.root_only_wrapping",), ("any",)),),
    example=example("no_prefetch"),
)
