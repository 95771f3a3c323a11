"""`memory.full_gather`: a single call gathers (almost) all parameters on every rank."""

from diagnostics.analysis.memory.gathers import Gather
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.analysis.memory.model_size import FROM_UNITS
from diagnostics.causes._own_model import blocks_unknown
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import CERTAIN, STATED, EvidenceItem, Finding
from diagnostics.contract.formatting import Bytes

_TEXTS = Texts(__file__)
LEAST_UNWEIGHED_BYTES = 1 << 20  # Gathers below this size are not reported if the peak is not known.
LARGE_ROOT = 0.3  # Share of all parameters above which a root unit is worth a hint.


def _part(call: Gather, whole_bytes: int, is_least: bool = False) -> Finding:
    """Rule it out by the largest gather; the parameters have `whole_bytes`, or at least as many if `is_least`."""
    part = call.full_bytes / whole_bytes
    rows = ["not_whole" if part < shared.ALMOST_ALL else "small"]
    if LARGE_ROOT < part < shared.ALMOST_ALL and not call.unit and not is_least:
        rows.append("large_root")
    rows.append("of_least" if is_least else "of_whole")
    gathered, whole = Bytes(call.full_bytes), Bytes(whole_bytes)
    return _TEXTS.ruled_out(rows, gathered=gathered, part=f"{part:.0%}", whole=whole)


def decide(job: JobMemory) -> Finding:
    """Compare the largest gather of parameters with the size of the whole model."""
    whole, peak = job.size.gather_bytes, job.peak()
    gathers = [(call, rank.rank) for rank in job.ranks.values() for call in _parameter_gathers(job, rank)]
    largest = max((call for call, _ in gathers), key=lambda call: call.full_bytes, default=None)
    if whole and largest is not None and largest.full_bytes >= shared.ALMOST_ALL * whole:
        if largest.full_bytes < (shared.LEAST_SHARE * peak if peak else LEAST_UNWEIGHED_BYTES):
            return _part(largest, whole)
        largest_calls = [(call, rank) for call, rank in gathers if call.full_bytes == largest.full_bytes]
        call = next((call for call, _ in largest_calls if call.site is not None), largest)
        ranks = job.ranks_of((rank for _, rank in largest_calls), call.ranks)
        saved, by_units = call.full_bytes, job.size.source == FROM_UNITS
        run, block = job.evidence.run, job.size.block_bytes
        layers = run.get("model.layers") if run is not None else None
        if call.kind != "user" and block and isinstance(layers, int):  # Wrapping saves all but the units in use.
            saved = max(0, (layers - shared.UNITS_IN_USE) * block)
        row = "no_blocks" if blocks_unknown(run) else "dtk" if job.is_dtk else "units"
        row = "user" if call.kind == "user" else row
        item = EvidenceItem(call.evidence, call.file, _TEXTS.phrase("seen", call=call))
        return shared.confirmed(
            job,
            _TEXTS.facts(
                row,
                at=shared.spot(call.site, call.at_head),
                part=f"{call.full_bytes / whole:.0%}",
                gathered=Bytes(call.full_bytes),
                sharded="sharded " if by_units else "",
                share=shared.share(call.full_bytes, peak),
                on_more_ranks=shared.on_more_ranks(job.predicted(fixed_bytes=saved)),
                saves=shared.of_peak(saved, peak),
            ),
            confidence=CERTAIN if by_units else STATED,
            ranks=ranks,
            step=call.step,
            where=shared.call_site(call, ranks),
            cost_bytes=saved,
            evidence=(item, *shared.peak_items(job)),
        )
    if largest is not None and whole:
        return _part(largest, whole)
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
