"""`memory.full_gather`: (almost) all parameters are gathered at once on every rank."""

from diagnostics.analysis.memory.curve import together
from diagnostics.analysis.memory.gathers import Gather, Traffic
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.analysis.memory.model_size import FROM_UNITS
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import CERTAIN, STATED, Finding
from diagnostics.contract.formatting import Bytes

_TEXTS = Texts(__file__)
LEAST_UNWEIGHED_BYTES = 1 << 20  # Gathers below this size are not reported if the peak is not known.
LEAST_PARTS = 2 * shared.UNITS_IN_USE  # With as many or fewer, the whole model is what is in use at a time.
LARGE_ROOT = 0.3  # Share of all parameters above which a root unit is worth a hint.


def _part(call: Gather, whole_bytes: int, is_least: bool = False) -> Finding:
    """Rule it out by the largest gather; the parameters have `whole_bytes`, or at least as many if `is_least`."""
    part = call.full_bytes / whole_bytes
    rows = ["not_whole" if part < shared.ALMOST_ALL else "small"]
    if LARGE_ROOT < part < shared.ALMOST_ALL and not call.unit and not is_least:
        rows.append("large_root")
    rows.append("of_least" if is_least else "of_whole")
    return _TEXTS.ruled_out(rows, gathered=Bytes(call.full_bytes), part=f"{part:.0%}", whole=Bytes(whole_bytes))


def decide(job: JobMemory) -> Finding:
    """Compare the largest gather of parameters, and those that live together, with the size of the whole model."""
    whole = job.size.gather_bytes
    gathers = [(call, rank.rank) for rank in job.ranks.values() for call in _parameter_gathers(job, rank)]
    largest = max((call for call, _ in gathers), key=lambda call: call.full_bytes, default=None)
    if whole and largest is not None and largest.full_bytes >= shared.ALMOST_ALL * whole:
        largest_calls = [(call, rank) for call, rank in gathers if call.full_bytes == largest.full_bytes]
        call = next((call for call, _ in largest_calls if call.site is not None), largest)
        saved, run, block, own = call.full_bytes, job.evidence.run, job.size.block_bytes, call.kind == "user"
        layers = job.evidence.declared("model.layers")
        if not own and block and isinstance(layers, int):  # Wrapping saves all but the units in use.
            saved = max(0, (layers - shared.UNITS_IN_USE) * block)
        row = "user" if own else "no_blocks" if run and run.searches_blocks else "dtk" if run else "units"
        ranks = job.ranks_of((rank for _, rank in largest_calls), call.ranks)
        return _whole(job, row, call, ranks, call.full_bytes, saved) or _part(largest, whole)
    if whole and largest is not None:
        return _together(job, whole, largest) or _part(largest, whole)
    if job.size.shards == 1:
        return shared.TEXTS.ruled_out("unsharded", strategy=job.size.strategy)
    if largest is not None and largest.full_bytes < shared.ALMOST_ALL * job.least_bytes():
        return _part(largest, job.least_bytes(), is_least=True)
    traffic = [record for rank in job.ranks.values() for record in (rank.trace, rank.flight, rank.ring)]
    if any(record.gathers for record in traffic if record is not None):
        row = "one_unit" if largest is not None and largest.kind == "unit" else "no_size"
        return _TEXTS.undecided([row, "open"], size=Bytes(largest.full_bytes if largest is not None else 0))
    if any(rank.trace or rank.flight for rank in job.ranks.values()):
        return shared.TEXTS.ruled_out("no_gather")
    return shared.not_recorded(job, "collectives")


def _whole(
    job: JobMemory, row: str, call: Gather, ranks: tuple[int, ...], size_bytes: int, saved: int, count: int = 1
) -> Finding | None:
    """Confirm that `size_bytes` are gathered in `count` parts, of which `call` is one; None if that is little."""
    peak, by_units = job.peak(), job.size.source == FROM_UNITS
    if min(size_bytes, saved or size_bytes) < (shared.LEAST_SHARE * peak if peak else LEAST_UNWEIGHED_BYTES):
        return None
    seen = _TEXTS.phrase("seen" if count == 1 else "seen_parts", size=size_bytes, count=count)
    part = f"{size_bytes / (job.size.gather_bytes or size_bytes):.0%}"
    figures = shared.gather_figures(job, call, size_bytes, saved)
    figures |= {"part": part, "gathered": Bytes(size_bytes), "count": count, "sharded": "sharded " if by_units else ""}
    facts, confidence = _TEXTS.facts(row, **figures), CERTAIN if by_units else STATED
    return shared.of_gather(job, call, facts, seen, ranks, confidence=confidence, cost_bytes=saved)


def _together(job: JobMemory, whole_bytes: int, largest: Gather) -> Finding | None:
    """Return a finding if almost all of the model is gathered in parts that live together: units, or tensors."""
    least = shared.ALMOST_ALL * whole_bytes
    for rank in job.ranks.values():
        trace, blocks = rank.trace or Traffic(), rank.curve.allocations if rank.curve is not None else []
        units = together([b for b in blocks if b.region.startswith("FSDP::all_gather") and not b.lent])
        count, size_bytes = len({block.region for block in units}), sum(block.size_bytes for block in units)
        if size_bytes >= least and count > LEAST_PARTS and not trace.kept_units():
            saved = max(0, size_bytes - shared.UNITS_IN_USE * largest.full_bytes)
            return _whole(job, "together", largest, job.ranks_of((rank.rank,), largest.ranks), size_bytes, saved, count)
        for step in {call.step for call in trace.gathers}:
            own = [call for call in trace.gathers if call.kind == "user" and call.step == step]
            size_bytes = sum(call.full_bytes for call in own)
            if len(own) > 1 and least <= size_bytes <= shared.SOME_MORE * whole_bytes:
                first, last = own[0].start_us or 0.0, own[-1].start_us or 0.0
                alive_together = together([block for block in blocks if first <= block.start_us <= last])
                if sum(block.size_bytes for block in alive_together) >= least:
                    ranks = job.ranks_of((rank.rank,), own[0].ranks)
                    return _whole(job, "one_by_one", own[0], ranks, size_bytes, size_bytes, len(own))
    return None


def _parameter_gathers(job: JobMemory, rank: RankMemory) -> list[Gather]:
    """Return the gathers of units, and with sharding also the user's gathers up to the size of the whole model."""
    calls, whole = rank.unit_gathers(job.is_sharded), job.size.gather_bytes
    if whole and job.is_sharded:
        users = [
            call for call in rank.user_gathers() if call.kind == "user" and call.full_bytes <= shared.SOME_MORE * whole
        ]
        calls = [*calls, *([call for call in users if call.site is not None] or users)]
    return calls


CAUSE = declared(__file__, read, decide)
