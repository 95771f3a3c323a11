"""`memory.no_reshard`: sharded units stay gathered from forward to backward."""

from collections.abc import Iterable, Mapping

from diagnostics.analysis.memory.gathers import Traffic
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import PLAUSIBLE, SEEN, EvidenceItem, Finding
from diagnostics.contract.formatting import Bytes

_TEXTS = Texts(__file__)


def decide(job: JobMemory) -> Finding:
    """Count the gathers of each unit: by annotations in traces, or else by the order of calls or the configuration."""
    run, all_ranks = job.evidence.run, list(job.ranks.values())
    declared = job.evidence.declared("strategy.reshard_after_forward")
    traces = {n: rank.trace for n, rank in job.ranks.items() if rank.trace is not None and rank.trace.units}
    traits = job.size.traits
    if traits.keeps_gathered:
        return _TEXTS.ruled_out("by_definition", name=traits.name, frees=traits.needs_less_memory or "")
    if job.size.shards == 1:
        return shared.TEXTS.ruled_out("unsharded", strategy=job.size.strategy)
    if finding := _by_trace(job, traces) or _roots(job, traces):
        return finding
    if not traces:
        if finding := _by_order(job):
            return finding
        units = run is not None and run.get("strategy.blocks_per_unit", 1) != 0
        if declared is False and units and (whole := job.size.gather_bytes):
            item = EvidenceItem("config", "config.yaml", "strategy.reshard_after_forward: false")
            world = range(job.size.world_size or 0)
            return _kept(job, "configuration", 0, whole, job.size.block_bytes or 0, world, item)
    if traces:
        most = max(unit.gathers for trace in traces.values() for unit in trace.units.values())
        only_root = all(len(trace.units) < 2 for trace in traces.values())
        return _TEXTS.ruled_out("only_root" if only_root else "freed", most=most)
    if any(rank.trace for rank in all_ranks) and not any(rank.unit_gathers(job.is_sharded) for rank in all_ranks):
        return shared.TEXTS.ruled_out("no_unit")
    return _TEXTS.ruled_out("configured") if declared is True else shared.not_recorded(job, "units")


def _by_trace(job: JobMemory, traces: Mapping[int, Traffic]) -> Finding | None:
    """Return a finding if units whose backward needed no gather hold most of the reducible memory; ignores the root."""
    kept = {rank: units for rank, trace in traces.items() if (units := trace.kept_units())}
    if not kept:
        return None
    totals = {rank: sum(unit.full_bytes for unit in units) for rank, units in kept.items()}
    rank = max(totals, key=totals.__getitem__)
    units = kept[rank]
    item = EvidenceItem("trace", job.ranks[rank].trace_file, _TEXTS.phrase("seen", units=len(units)))
    largest = max(unit.full_bytes for unit in units)
    return _kept(job, "trace", len(units), totals[rank], largest, kept, item)


def _roots(job: JobMemory, traces: Mapping[int, Traffic]) -> Finding | None:
    """Return a finding about units without a root unit, which stay gathered by default, often intentionally."""
    for rank, trace in traces.items():
        whole, root = trace.whole, trace.units.get("")
        if root is None or whole.roots < 2 or root.gathers > root.forwards:
            continue
        if not job.out_of_memory:
            return _by_default("roots", whole.roots, whole.least_bytes)
        item = EvidenceItem("trace", job.ranks[rank].trace_file, _TEXTS.phrase("seen_roots", units=whole.roots))
        return _kept(job, "roots", whole.roots, whole.least_bytes, root.full_bytes, traces, item)
    return None


def _by_order(job: JobMemory) -> Finding | None:
    """Return a finding, without traces, about units gathered once per reduction, from flight dumps and rings."""
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
    # There is no root unit around the others.
    is_uniform = traffic is not None and len({move.unit for move in traffic.moves}) == 1
    if is_uniform and not job.evidence.is_dtk and not job.out_of_memory:
        return _by_default("order", 0, total)
    item = EvidenceItem(largest.evidence, largest.file, _TEXTS.phrase("seen_order"))
    return _kept(job, "order", 0, total, largest.full_bytes, kept, item)


def _ordered(rank: RankMemory) -> Traffic | None:
    return next((traffic for traffic in (rank.ring, rank.flight) if traffic is not None and traffic.moves), None)


def _by_default(how: str, units: int, total_bytes: int) -> Finding:
    what = _TEXTS.phrase(how, units=units)
    return _TEXTS.undecided("by_default", what=what, total=Bytes(total_bytes))


def _kept(
    job: JobMemory, how: str, units: int, total_bytes: int, unit_bytes: int, seen: Iterable[int], item: EvidenceItem
) -> Finding:
    """Confirm it, unless freeing all but the units in use (0 = not known) would save almost nothing."""
    peak, saved = job.peak(), max(0, total_bytes - shared.UNITS_IN_USE * unit_bytes)
    what = _TEXTS.phrase(how, units=units)
    if saved <= shared.LEAST_SHARE * (peak or job.size.parameter_bytes or 0):
        return _TEXTS.ruled_out("cheap", what=what, cost=shared.of_peak(saved, peak or job.size.parameter_bytes))
    ranks = job.ranks_of(seen, job.size.world_size or 0)
    return shared.confirmed(
        job,
        _TEXTS.facts(
            ["default", "of_dtk" if job.evidence.is_dtk else "code"],
            what=what,
            total=Bytes(total_bytes),
            share=shared.share(total_bytes, peak),
            who=shared.rank_names(ranks),
            on_more_ranks=shared.on_more_ranks(job.predicted(fixed_bytes=saved)),
            saves=shared.of_peak(saved, peak),
        ),
        confidence=SEEN if job.evidence.is_dtk or job.out_of_memory else PLAUSIBLE,
        ranks=ranks,
        cost_bytes=saved,
        evidence=(item, *shared.peak_items(job)),
    )


CAUSE = declared(__file__, read, decide)
