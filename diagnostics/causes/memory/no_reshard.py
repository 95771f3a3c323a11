"""`memory.no_reshard`: sharded units stay gathered from forward to backward."""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.memory.gathers import Traffic, UnitUse
from diagnostics.analysis.memory.job import JobMemory, Prediction, RankMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import EvidenceItem, Finding, Text
from diagnostics.contract.formatting import bytes_text

ID = "memory.no_reshard"
_HOW = {
    "trace": "{units} units are gathered once a step and kept from forward to backward",
    "order": "Units are gathered as often as their gradients are reduced: they are kept from forward to backward",
    "roots": "{units} units are gathered once a step and kept from forward to backward, as no fully_shard is around "
    "them",
    "configuration": "The strategy keeps gathered parameters from forward to backward (reshard_after_forward=false)",
}


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
        what = _HOW[self.how].format(units=self.units)
        if finding.status == "undecided":
            summary = f"{what} ({bytes_text(self.total_bytes)}). That is the default for units without a fully_shard "
            summary += "on the whole model, and right where memory suffices."
            missing = "whether memory is short: the out-of-memory text, or torch.cuda.memory._dump_snapshot() of a GPU"
            return Text(summary=summary, missing=missing)
        saves = shared.of_peak(self.saved_bytes, self.peak_bytes)
        change = "pass reshard_after_forward=True to fully_shard (False at most for the last block)"
        why = "each unit is freed after its forward and gathered again in backward"
        remedy = shared.fix(self.is_dtk, "strategy.reshard_after_forward=true", change, why, saves)
        total = f"{bytes_text(self.total_bytes)}{shared.share(self.total_bytes, self.peak_bytes)}"
        return Text(
            summary=f"{what}: {total} on {shared.rank_names(finding.ranks)}{shared.on_more_ranks(self.prediction)}.",
            measured=f"{bytes_text(self.total_bytes)} kept over the step",
            remedies=(remedy,),
        )


def decide(job: JobMemory) -> list[Finding]:
    """Count the gathers of each unit: by annotations of traces, else by the order of calls, else by configuration."""
    run, all_ranks = job.evidence.run, list(job.ranks.values())
    declared = run.get("strategy.reshard_after_forward") if run is not None else None
    traces = {n: rank.trace for n, rank in job.ranks.items() if rank.trace is not None and rank.trace.units}
    traits = job.size.traits
    if traits.keeps_gathered:
        summary = (
            "The strategy {name} keeps gathered parameters until backward by definition; strategy={frees} frees them."
        )
        return shared.ruled_out(ID, summary, "{name}", name=traits.name, frees=traits.needs_less_memory or "")
    if job.size.shards == 1:
        return shared.unsharded(ID, job)
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
        summary = "Units are freed after forward and gathered again in backward."
        measured = "units are gathered up to {most} times in the window"
        if all(len(trace.units) < 2 for trace in traces.values()):
            summary = "There is no unit but the root, which backward needs first."
            measured = "the root is gathered {most} times in the window"
        return shared.ruled_out(ID, summary, measured, most=most)
    if any(rank.trace for rank in all_ranks) and not any(rank.unit_gathers(job.is_sharded) for rank in all_ranks):
        return shared.absent(ID, "no sharded unit in what was recorded")
    if declared is True:
        return shared.ruled_out(ID, "reshard_after_forward is on.", "configured")
    return shared.not_recorded(ID, job, "units")


def _by_trace(job: JobMemory, traces: Mapping[int, Traffic]) -> list[Finding]:
    """Units whose backward needed no gather, if they are most of what can be freed; the root never counts."""
    kept: dict[int, list[UnitUse]] = {}
    for rank, trace in traces.items():
        used = [unit for name, unit in trace.units.items() if name and unit.backwards and unit.full_bytes]
        units = [unit for unit in used if unit.gathers <= unit.forwards]
        if len(units) > 1 and 2 * _total(units) > _total(used):
            kept[rank] = units
    if not kept:
        return []
    rank, units = max(kept.items(), key=lambda item: _total(item[1]))
    item = EvidenceItem("trace", job.ranks[rank].trace_file, f"{len(units)} units without a gather in backward")
    largest = max(unit.full_bytes for unit in units)
    return _kept(job, Kept("trace", len(units), _total(units)), largest, kept, item)


def _total(units: list[UnitUse]) -> int:
    return sum(unit.full_bytes for unit in units)


def _roots(job: JobMemory, traces: Mapping[int, Traffic]) -> list[Finding]:
    """Units without a whole around them, which stay gathered unless told otherwise: often meant so."""
    for rank, trace in traces.items():
        whole, root = trace.whole, trace.units.get("")
        if root is None or whole.roots < 2 or root.gathers > root.forwards:
            continue
        kept = Kept("roots", whole.roots, whole.least_bytes)
        if not job.out_of_memory:
            return [Finding(cause=ID, status="undecided", facts=kept, confidence=0.0)]
        detail = f"{whole.roots} root units without a gather in backward"
        return _kept(job, kept, root.full_bytes, traces, EvidenceItem("trace", job.ranks[rank].trace_file, detail))
    return []


def _by_order(job: JobMemory) -> list[Finding]:
    """Without traces: units that are gathered once for each reduction, by flight dumps and rings."""
    kept = {}
    for rank in job.ranks.values():
        calls, traffic = rank.unit_gathers(job.is_sharded), _ordered(rank)
        total = traffic.kept_bytes() if traffic is not None and calls else 0
        if total > (job.size.gather_bytes or 0) / 2:
            kept[rank.rank] = (total, max(calls, key=lambda call: call.full_bytes))
    if not kept:
        return []
    first, (total, largest) = next(iter(kept.items()))
    traffic = _ordered(job.ranks[first])
    alike = traffic is not None and len({move.unit for move in traffic.moves}) == 1  # no root around the others
    if alike and not job.is_dtk and not job.out_of_memory:
        return [Finding(cause=ID, status="undecided", facts=Kept("order", 0, total), confidence=0.0)]
    item = EvidenceItem(largest.evidence, largest.file, "one gather for each reduction of the same size")
    return _kept(job, Kept("order", 0, total), largest.full_bytes, kept, item)


def _ordered(rank: RankMemory) -> Traffic | None:
    return next((traffic for traffic in (rank.ring, rank.flight) if traffic is not None and traffic.moves), None)


def _kept(job: JobMemory, kept: Kept, unit_bytes: int, seen: Iterable[int], item: EvidenceItem) -> list[Finding]:
    """Confirm it, unless freeing all but the units in use would save next to nothing."""
    peak, saved = job.peak(), max(0, kept.total_bytes - shared.UNITS_IN_USE * unit_bytes)
    if saved <= shared.LEAST_SHARE * (peak or job.size.parameter_bytes or 0):
        what = _HOW[kept.how].format(units=kept.units)
        return shared.ruled_out(
            ID, f"{what}, which costs little.", shared.of_peak(saved, peak or job.size.parameter_bytes)
        )
    prediction = job.predicted(fixed_bytes=saved)
    return shared.confirmed(
        ID,
        job,
        replace(kept, saved_bytes=saved, peak_bytes=peak, prediction=prediction, is_dtk=job.is_dtk),
        confidence=0.95 if job.is_dtk or job.out_of_memory else 0.75,
        ranks=job.ranks_of(seen, job.size.world_size or 0),
        cost_bytes=saved,
        evidence=(item, *job.peak_items()),
    )


CAUSE = declared(__file__, read, decide)
