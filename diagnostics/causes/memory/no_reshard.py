"""`memory.no_reshard`: sharded units stay gathered from forward to backward."""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.memory.gathers import Traffic, UnitUse
from diagnostics.analysis.memory.job import JobMemory, Prediction, RankMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import EvidenceItem, Finding, Text
from diagnostics.contract.formatting import Bytes

_TEXTS = Texts(__file__)


class Kept(Struct, frozen=True):
    """Units that are gathered once a step."""

    how: Literal["trace", "order", "roots", "configuration"]
    """What shows it."""
    units: int
    """0 = not known."""
    total_bytes: int
    saved_bytes: int = 0
    peak_bytes: int | None = None
    """Without a peak, of the parameters."""
    prediction: Prediction | None = None
    is_dtk: bool = False

    def text(self, finding: Finding) -> Text:
        """Say what is kept and how to free it; or that it may be meant so."""
        return _TEXTS(
            finding,
            "default" if finding.status == "undecided" else ["usual", "of_dtk" if self.is_dtk else "code"],
            what=_TEXTS.phrase(self.how, units=self.units),
            total=Bytes(self.total_bytes),
            share=shared.share(self.total_bytes, self.peak_bytes),
            who=shared.rank_names(finding.ranks),
            on_more_ranks=shared.on_more_ranks(self.prediction),
            saves=shared.of_peak(self.saved_bytes, self.peak_bytes),
        )


def decide(job: JobMemory) -> Finding:
    """Count the gathers of each unit: by annotations of traces, else by the order of calls, else by configuration."""
    run, all_ranks = job.evidence.run, list(job.ranks.values())
    declared = run.get("strategy.reshard_after_forward") if run is not None else None
    traces = {n: rank.trace for n, rank in job.ranks.items() if rank.trace is not None and rank.trace.units}
    traits = job.size.traits
    if traits.keeps_gathered:
        return _TEXTS.ruled_out("by_definition", name=traits.name, frees=traits.needs_less_memory or "")
    if job.size.shards == 1:
        return shared.unsharded(job)
    if finding := _by_trace(job, traces) or _roots(job, traces):
        return finding
    if not traces:
        if finding := _by_order(job):
            return finding
        units = run is not None and run.get("strategy.blocks_per_unit", 1) != 0
        if declared is False and units and (whole := job.size.gather_bytes):
            item = EvidenceItem("config", "config.yaml", "strategy.reshard_after_forward: false")
            world = range(job.size.world_size or 0)
            return _kept(job, Kept("configuration", 0, whole), job.size.block_bytes or 0, world, item)
    if traces:
        most = max(unit.gathers for trace in traces.values() for unit in trace.units.values())
        only_root = all(len(trace.units) < 2 for trace in traces.values())
        return _TEXTS.ruled_out("only_root" if only_root else "freed", most=most)
    if any(rank.trace for rank in all_ranks) and not any(rank.unit_gathers(job.is_sharded) for rank in all_ranks):
        return shared.absent("no_unit")
    if declared is True:
        return _TEXTS.ruled_out("configured")
    return shared.not_recorded(job, "units")


def _by_trace(job: JobMemory, traces: Mapping[int, Traffic]) -> Finding | None:
    """Units whose backward needed no gather, if they are most of what can be freed; the root never counts."""
    kept: dict[int, list[UnitUse]] = {}
    for rank, trace in traces.items():
        used = [unit for name, unit in trace.units.items() if name and unit.backwards and unit.full_bytes]
        units = [unit for unit in used if unit.gathers <= unit.forwards]
        if len(units) > 1 and 2 * _total(units) > _total(used):
            kept[rank] = units
    if not kept:
        return None
    rank, units = max(kept.items(), key=lambda item: _total(item[1]))
    item = EvidenceItem("trace", job.ranks[rank].trace_file, _TEXTS.phrase("seen", units=len(units)))
    largest = max(unit.full_bytes for unit in units)
    return _kept(job, Kept("trace", len(units), _total(units)), largest, kept, item)


def _total(units: list[UnitUse]) -> int:
    return sum(unit.full_bytes for unit in units)


def _roots(job: JobMemory, traces: Mapping[int, Traffic]) -> Finding | None:
    """Units without a whole around them, which stay gathered unless told otherwise: often meant so."""
    for rank, trace in traces.items():
        whole, root = trace.whole, trace.units.get("")
        if root is None or whole.roots < 2 or root.gathers > root.forwards:
            continue
        kept = Kept("roots", whole.roots, whole.least_bytes)
        if not job.out_of_memory:
            return Finding(status="undecided", facts=kept, confidence=0.0)
        detail = _TEXTS.phrase("seen_roots", units=whole.roots)
        return _kept(job, kept, root.full_bytes, traces, EvidenceItem("trace", job.ranks[rank].trace_file, detail))
    return None


def _by_order(job: JobMemory) -> Finding | None:
    """Without traces: units that are gathered once for each reduction, by flight dumps and rings."""
    kept = {}
    for rank in job.ranks.values():
        calls, traffic = rank.unit_gathers(job.is_sharded), _ordered(rank)
        total = traffic.kept_bytes() if traffic is not None and calls else 0
        if total > (job.size.gather_bytes or 0) / 2:
            kept[rank.rank] = (total, max(calls, key=lambda call: call.full_bytes))
    if not kept:
        return None
    first, (total, largest) = next(iter(kept.items()))
    traffic = _ordered(job.ranks[first])
    alike = traffic is not None and len({move.unit for move in traffic.moves}) == 1  # no root around the others
    if alike and not job.is_dtk and not job.out_of_memory:
        return Finding(status="undecided", facts=Kept("order", 0, total), confidence=0.0)
    item = EvidenceItem(largest.evidence, largest.file, _TEXTS.phrase("seen_order"))
    return _kept(job, Kept("order", 0, total), largest.full_bytes, kept, item)


def _ordered(rank: RankMemory) -> Traffic | None:
    return next((traffic for traffic in (rank.ring, rank.flight) if traffic is not None and traffic.moves), None)


def _kept(job: JobMemory, kept: Kept, unit_bytes: int, seen: Iterable[int], item: EvidenceItem) -> Finding:
    """Confirm it, unless freeing all but the units in use would save next to nothing."""
    peak, saved = job.peak(), max(0, kept.total_bytes - shared.UNITS_IN_USE * unit_bytes)
    if saved <= shared.LEAST_SHARE * (peak or job.size.parameter_bytes or 0):
        what, cost = _TEXTS.phrase(kept.how, units=kept.units), shared.of_peak(saved, peak or job.size.parameter_bytes)
        return _TEXTS.ruled_out("cheap", what=what, cost=cost)
    prediction = job.predicted(fixed_bytes=saved)
    return shared.confirmed(
        job,
        replace(kept, saved_bytes=saved, peak_bytes=peak, prediction=prediction, is_dtk=job.is_dtk),
        confidence=0.95 if job.is_dtk or job.out_of_memory else 0.75,
        ranks=job.ranks_of(seen, job.size.world_size or 0),
        cost_bytes=saved,
        evidence=(item, *shared.peak_items(job)),
    )


CAUSE = declared(__file__, read, decide)
