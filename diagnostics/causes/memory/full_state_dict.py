"""`memory.full_state_dict`: a checkpoint gathers the whole model (or more) in the memory of each rank."""

from collections.abc import Sequence

from diagnostics.analysis.memory.curve import together
from diagnostics.analysis.memory.gathers import Gather
from diagnostics.analysis.memory.job import JobMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import CERTAIN, CITED, LIKELY, EvidenceItem, Finding
from diagnostics.contract.formatting import UNNAMED, Bytes, counted, sentence
from diagnostics.evidence.memory.levels import AT, PARAMETERS, SAVED

_TEXTS = Texts(__file__)
ALIVE = 0.5
"""Share of all parameters that is alive at the same time; if tensors are written one by one, only one of them is."""
WITH_OPTIMIZER = 1.5
"""Multiple of all parameters gathered in one checkpoint from which optimizer states are included; 3 with AdamW."""

LEAST_COPIES = 8  # Tensors of a state dict in the peak; a single one is gathered to look at it, or to write it.
OF_PEAK = 0.1  # Minimum share of the peak.


def decide(job: JobMemory) -> Finding:
    """Decide from what is gathered outside the steps and alive at the same time, or from where memory ran out."""
    if saving := [record for record in job.ran_out if record.device == "cuda" and record.saving]:
        ranks = tuple(UNNAMED if record.rank is None else record.rank for record in saving)
        who = sentence(shared.rank_names(ranks))
        return shared.confirmed(
            job,
            _TEXTS.facts(who=who, function=saving[0].saving, messages=counted(len(saving[:CITED]), "message")),
            confidence=LIKELY,
            ranks=ranks,
            cost_bytes=max(record.requested_bytes or 0 for record in saving),
            evidence=tuple(record.item for record in saving[:CITED]),
        )
    if finding := _at_peak(job):
        return finding
    whole = job.size.gather_bytes
    for rank in job.ranks.values():
        # One gather per parameter, by DTensor or by the state-dict functions.
        traced, dumped = (traffic.gathers if traffic is not None else [] for traffic in (rank.trace, rank.flight))
        calls = [call for call in traced if call.kind == "library"] or _of_state_dict(dumped)
        times = len({call.step for call in calls}) or 1
        total = sum(call.full_bytes for call in calls) // times
        if not whole or total < shared.ALMOST_ALL * whole or len(calls) < 2 * times:
            continue
        if rank.curve is None:
            return shared.not_recorded(job, "lifetimes")
        alive = sum(block.size_bytes for block in together([b for b in rank.curve.allocations if b.gathered]))
        calls = calls[: len(calls) // times]
        if alive < ALIVE * whole:
            return _TEXTS.ruled_out(gathers=len(calls), alive=Bytes(alive), whole=Bytes(whole))
        dumps = [call for rank in job.ranks.values() if rank.flight for call in _of_state_dict(rank.flight.gathers)]
        call = next((call for call in (*calls, *dumps) if call.site is not None), calls[0])
        ranks = job.ranks_of(job.ranks, calls[0].ranks)
        seen = _TEXTS.phrase("seen", gathers=len(calls), total=total)
        what = _TEXTS.phrase("all_states" if total >= WITH_OPTIMIZER * whole else "parameters")
        row = "gathered_by_dtk" if job.evidence.is_dtk else "gathered"
        figures = shared.gather_figures(job, call, alive, alive)
        figures |= {"who": shared.rank_names(ranks), "gathers": len(calls), "what": what, "alive": Bytes(alive)}
        facts = _TEXTS.facts(row, **figures)
        return shared.of_gather(job, call, facts, seen, ranks, confidence=CERTAIN, cost_bytes=alive)
    if job.size.shards == 1:
        return shared.TEXTS.ruled_out("unsharded", strategy=job.size.strategy)
    if any(rank.trace or rank.flight for rank in job.ranks.values()):
        return shared.TEXTS.ruled_out("no_state_dict")
    return shared.not_recorded(job, "collectives")


def _at_peak(job: JobMemory) -> Finding | None:
    """Return a finding if a snapshot's peak holds a full state dict: many copies, larger than the parameters held."""
    candidates = []
    for rank in job.ranks.values():
        device = rank.fullest
        history = device.history if device is not None else None
        if device is None or history is None or history.peak is None or len(history.saved) < LEAST_COPIES:
            continue
        saved, parameters = (history.peak[1][AT[kind]] for kind in (SAVED, PARAMETERS))
        if saved >= max(parameters, OF_PEAK * device.peak_bytes):
            candidates.append((saved, rank, len(history.saved), device))
    if not candidates:
        return None
    saved, rank, copies, device = max(candidates, key=lambda candidate: candidate[0])
    share = shared.share(saved, device.peak_bytes)
    figures = {"alive": Bytes(saved), "copies": copies, "share": share}
    ranks = sorted(holder.rank for _, holder, _, _ in candidates)
    item = EvidenceItem("snapshot", rank.snapshot_file, _TEXTS.phrase("seen_held", **figures))
    return shared.confirmed(
        job,
        _TEXTS.facts("held", who=sentence(shared.rank_names(ranks)), **figures),
        confidence=LIKELY,
        ranks=ranks,
        where=shared.where(device.saved_site, False, rank.rank, _TEXTS.phrase("does")),
        cost_bytes=saved,
        evidence=(item,),
    )


def _of_state_dict(calls: Sequence[Gather]) -> list[Gather]:
    return [call for call in calls if call.kind == "state_dict"]


CAUSE = declared(__file__, read, decide)
