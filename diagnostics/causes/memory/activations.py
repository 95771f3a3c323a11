"""`memory.activations`: tensors saved by forward for backward dominate a peak that does not fit."""

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.categories import ACTIVATIONS, LOGITS, UNKNOWN
from diagnostics.analysis.memory.job import JobMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import LIKELY, EvidenceItem, Finding
from diagnostics.contract.formatting import Bytes, region_text

_TEXTS = Texts(__file__)
TIGHT = 0.9  # Share of the device memory from which a peak counts as out of memory.
DOMINANT = 0.5  # Minimum share of the peak.
MANY_LOGITS = 0.25  # Share of the activations above which logits have remedies of their own.


def decide(job: JobMemory) -> Finding:
    """Decide from the composition of the highest peak, if memory ran out or is about to."""
    peaks = [(rank, peak) for rank in job.ranks.values() if (peak := categories.peak(job, rank)) is not None]
    if not peaks:
        return shared.not_recorded(job, "allocations")
    rank, peak = max(peaks, key=lambda item: item[1].total_bytes)
    curve, capacity = rank.curve, job.capacity()
    logits = peak.categories.get(LOGITS, 0)
    work = peak.categories.get(ACTIVATIONS, 0) + logits
    few = work < DOMINANT * peak.total_bytes
    if few and work + peak.categories.get(UNKNOWN, 0) >= DOMINANT * peak.total_bytes:
        return shared.not_recorded(job, "allocations")
    figures = {"work": Bytes(work), "peak": Bytes(peak.total_bytes)}
    measured = _TEXTS.phrase("measured", part=f"{work / peak.total_bytes:.0%}", **figures)
    tight = job.out_of_memory or (capacity is not None and peak.total_bytes >= TIGHT * capacity.size_bytes)
    if not tight or few:
        return _TEXTS.ruled_out("few" if few else "fits", measured=measured)
    requests = [record.requested_bytes or 0 for record in job.ran_out]
    if min(requests, default=0) > peak.total_bytes:  # Freeing the held memory would not suffice.
        return _TEXTS.ruled_out("one_request", measured=measured, requested=Bytes(min(requests)), peak=figures["peak"])
    micro = job.evidence.declared("train.micro_batch_size")
    has_logits, half_batch = logits > MANY_LOGITS * work, micro // 2 if isinstance(micro, int) else 0
    checkpoints = job.evidence.declared("train.activation_checkpoint_every")
    rows = ["with_logits" if has_logits else "default"]
    rows += ["checkpoint"] if job.evidence.run is None else [] if checkpoints else ["override"]
    rows += (["micro_batch"] if half_batch else []) + (["chunked_loss"] if has_logits and not job.size.strategy else [])
    step = curve.peak_step if curve is not None else None
    at = (
        _TEXTS.phrase("at", step=step, region=region_text(curve.peak_region))
        if curve is not None and step is not None
        else ""
    )
    kind, file = rank.history[1:] if curve is None and rank.history is not None else ("trace", rank.trace_file)
    return shared.confirmed(
        job,
        _TEXTS.facts(
            rows,
            who=shared.rank_names([rank.rank]),
            measured=measured,
            logits=Bytes(logits),
            at=at,
            saves=Bytes(max(0, work - logits)),
            half=Bytes(work / 2),
            half_batch=half_batch,
            **figures,
        ),
        confidence=LIKELY,
        ranks=(rank.rank for rank, _ in peaks),
        step=step,
        cost_bytes=work,
        evidence=(EvidenceItem(kind, file, measured),),
    )


CAUSE = declared(__file__, read, decide)
