"""How sharded parameters are gathered: as one unit, in tiny units, without gathering ahead."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from diagnostics.analysis.step_profile import attainable
from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.analysis.step_profile.profile import RankProfile
from diagnostics.analysis.step_profile.reductions import Reduced, large, latency, share_of, total_bytes
from diagnostics.contract.findings import Finding
from diagnostics.detectors.overlap.decide import (
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

CAUSES = ("overlap.root_only_wrapping", "overlap.no_prefetch", "overlap.small_units")
_MANY = 16
"""Gathers of one forward from which on they are many."""
_TINY_BYTES = 1 << 20
_TINY_NS = 100_000
_MOST = 0.8
_GOOD_UNITS = 8
_NONE_HIDDEN = 0.15
"""Share of the gathers' time beside compute up to which none of them ran ahead."""


@dataclass(slots=True)
class _Pass:
    """Gathers and reductions of one micro-batch of one step."""

    gathers: list[Reduced] = field(default_factory=list)
    """In forward."""
    again: list[Reduced] = field(default_factory=list)
    """In backward."""
    scatters: list[Reduced] = field(default_factory=list)
    compute: int = 0
    """Of one micro-batch, ns."""

    @property
    def overlapped(self) -> int:
        """Compute that hides communication already, ns."""
        return sum(one.call.overlapped for one in self.everything)

    @property
    def everything(self) -> list[Reduced]:
        """All of it."""
        return self.gathers + self.again + self.scatters


def decide(view: Overview, evidence: Evidence) -> list[Finding]:
    """All causes of this family."""
    calls = [call for one in view.profiles for call in one.calls]
    if not {"all_gather", "reduce_scatter"} <= {call.message.op for call in calls}:
        return [ruled_out(cause, "parameters are not sharded: no all_gather with reduce_scatter") for cause in CAUSES]
    if not any(call.phase for call in calls):
        why = "The trace does not show when forward and backward run."
        return [undecided(cause, why) for cause in CAUSES]
    passes = {one.rank: _passes(view, one) for one in view.profiles}
    if not any(p.gathers for ones in passes.values() for p in ones):
        return [ruled_out(cause, "0 gathers in forward") for cause in CAUSES]
    return [_root_only(view, passes), _no_prefetch(view, passes), _small_units(view, passes)]


def _passes(view: Overview, one: RankProfile) -> list[_Pass]:
    found: dict[tuple[int, int], _Pass] = {}
    for call, transfer, exposed in view.calls(one):
        if call.message.op not in ("all_gather", "reduce_scatter") or call.phase in ("", "optimizer"):
            continue
        here = found.setdefault((call.step, call.micro), _Pass())
        kind = here.scatters if call.message.op == "reduce_scatter" else (
            here.gathers if call.phase == "forward" else here.again)  # fmt: skip
        kind.append(Reduced(call, transfer, exposed))
    for (step, _), here in found.items():
        times = one.steps[step]
        here.compute = times.times.compute // max(1, times.micros)
    return [found[key] for key in sorted(found)]


def _typical(passes: dict[int, list[_Pass]], amount: Callable[[_Pass], float]) -> float:
    ranks = [median(amount(one) for one in ones) for ones in passes.values() if ones]
    return median(ranks) if ranks else 0.0


def _per_step(view: Overview, passes: dict[int, list[_Pass]], amount: Callable[[_Pass], float]) -> float:
    """Of a step, ms."""
    return view.typical_ms(lambda one: sum(amount(here) for here in passes[one.rank]))


def _sample(passes: dict[int, list[_Pass]]) -> _Pass:
    ones = next(ones for ones in passes.values() if ones)
    return ones[len(ones) // 2]


def _is_root_only(here: _Pass) -> bool:
    gathers = here.gathers
    big = large(gathers)
    return len(big) == 1 and len(gathers) <= 3 and share_of(big[0], gathers) >= _MOST and len(large(here.scatters)) <= 1


def _root_only(view: Overview, passes: dict[int, list[_Pass]]) -> Finding:
    cause = "overlap.root_only_wrapping"
    sample = _sample(passes)
    declared = view.declared("strategy.blocks_per_unit")
    if _typical(passes, lambda here: float(_is_root_only(here))) < 0.5 or (isinstance(declared, int) and declared > 0):
        return ruled_out(cause, f"{len(sample.gathers)} gathers in a forward pass")
    cost = _per_step(view, passes, lambda here: _unit_gain(view, here, _GOOD_UNITS))
    size = total_bytes(sample.gathers)
    if not view.worth(cost):
        return too_little(view, cause, cost, f"{len(sample.gathers)} gather in a forward pass")
    return confirmed(
        view,
        cause,
        f"All parameters are gathered as one unit{' of ' + megabytes(size) if size else ''} before any compute: "
        f"up to {of_step(view, cost)}, and their whole memory at once.",
        cost,
        details=[f"{len(sample.gathers)} all_gather and {len(sample.scatters)} reduce_scatter a micro-batch"],
        remedies=[
            override(
                view,
                "strategy.blocks_per_unit=1",
                "each block is gathered while the one before it computes",
                "call `fully_shard` on every block before the root (FSDP1: an `auto_wrap_policy`)",
                cost,
            )
        ],
    )


def _unit_gain(view: Overview, here: _Pass, units: int) -> float:
    """What so many units would win in one micro-batch, ns."""
    gained = 0.0
    for ones, part in ((here.gathers, 1 / 3), (here.again + here.scatters, 2 / 3)):
        if not ones:
            continue
        transfer = sum(one.transfer for one in ones)
        fixed = min(latency(view), transfer / len(ones) / 4)
        pure = max(0.0, transfer - fixed * len(ones))
        best = attainable.exposed_in_units(pure, fixed, units, here.compute * part)
        gained += max(0.0, sum(one.exposed for one in ones) - best)
    return gained


def _hidden(ones: list[Reduced]) -> float:
    time = sum(one.call.duration for one in ones)
    return sum(one.call.overlapped for one in ones) / time if time else 0.0


def _to_hide(here: _Pass, blind: list[str]) -> float:
    """Of the gathers of these phases that could run beside compute, ns; the first of a phase never can."""
    chosen = (here.gathers[1:] if "forward" in blind else []) + (here.again[1:] if "backward" in blind else [])
    return min(sum(one.exposed for one in chosen), max(0, here.compute - here.overlapped))


def _no_prefetch(view: Overview, passes: dict[int, list[_Pass]]) -> Finding:
    cause = "overlap.no_prefetch"
    depth = view.declared("strategy.prefetch_depth")
    if not view.on_device and depth != 0:
        return ruled_out(cause, "work runs on CPU: gathers take the cores that compute needs")
    sample = _sample(passes)
    if _typical(passes, lambda here: len(here.gathers)) < 3:
        return ruled_out(cause, f"{len(sample.gathers)} gathers in a forward pass")
    forward = _typical(passes, lambda here: _hidden(here.gathers[1:]))
    backward = _typical(passes, lambda here: _hidden(here.again[1:])) if sample.again else 1.0
    blind = [name for name, share in (("forward", forward), ("backward", backward)) if share <= _NONE_HIDDEN]
    if not blind:
        return ruled_out(cause, f"{forward:.0%} of the gathers in forward run beside compute")
    cost = _per_step(view, passes, lambda here: _to_hide(here, blind))
    if not view.worth(cost):
        return too_little(view, cause, cost, f"{forward:.0%} of the gathers in forward run beside compute")
    where = " and ".join(blind)
    return confirmed(
        view,
        cause,
        f"Each unit's parameters are gathered only when compute needs them ({where}): up to {of_step(view, cost)}.",
        cost,
        details=[f"{_hidden(sample.gathers[1:]):.0%} of the gathers in forward run beside compute"],
        remedies=[
            override(
                view,
                f"strategy.prefetch_depth={2 if depth == 1 else 1}",
                "the next unit is gathered while this one computes",
                "name the next units with `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch` "
                "(FSDP1: `forward_prefetch=True`, `BackwardPrefetch.BACKWARD_PRE`)",
                cost,
            )
        ],
    )


def _small_units(view: Overview, passes: dict[int, list[_Pass]]) -> Finding:
    cause = "overlap.small_units"
    sample = _sample(passes)
    ones = sample.gathers
    tiny = sum(
        (one.call.message.size_bytes <= _TINY_BYTES) if one.call.message.size_bytes else one.transfer <= _TINY_NS
        for one in ones
    )
    if len(ones) < _MANY or tiny < _MOST * len(ones):
        return ruled_out(cause, f"{tiny} of {len(ones)} gathers of a forward pass are tiny")

    def gain(here: _Pass) -> float:
        every = here.everything
        spared = max(0.0, len(every) * (1 - _GOOD_UNITS / max(_GOOD_UNITS, len(here.gathers))))
        fixed = min(latency(view), median(one.transfer for one in every))
        return min(sum(one.exposed for one in every) if view.on_device else fixed * spared, fixed * spared)

    cost = _per_step(view, passes, gain)
    size = total_bytes(ones)
    what = f"{len(ones)} gathers of {megabytes(size / len(ones)) if size else 'unknown size'} on average in a forward"
    if not view.worth(cost):
        return too_little(view, cause, cost, what)
    now = view.declared("strategy.blocks_per_unit") or 1
    return confirmed(
        view,
        cause,
        f"Parameters are gathered in {len(ones)} tiny units; most of their time is the fixed cost of a collective: "
        f"up to {of_step(view, cost)}.",
        cost,
        details=[what, f"fixed cost of a collective about {figure(latency(view) / 1000)} us"],
        remedies=[
            override(
                view,
                f"strategy.blocks_per_unit={max(2, now * len(ones) // _GOOD_UNITS)}",
                "fewer and larger gathers",
                "call `fully_shard` on groups of several blocks",
                cost,
            )
        ],
    )
