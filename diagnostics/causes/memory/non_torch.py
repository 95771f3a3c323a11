"""`memory.non_torch`: memory outside PyTorch's allocator (NCCL, libraries, other processes) caused the shortage."""

from diagnostics.analysis.memory.job import JobMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import CERTAIN, PROBABLE, Finding
from diagnostics.contract.formatting import Bytes

_TEXTS = Texts(__file__)
LEAST_OUTSIDE = 0.15  # Minimum share of the device.
_LEAST_BYTES = 3 << 29  # CUDA contexts use 0.3 to 0.6 GiB, NCCL communicators 0.5-0.7 (4 x A100).


def decide(job: JobMemory) -> Finding:
    """Subtract the memory held by PyTorch from the memory in use on the device."""
    messages = [
        (outside, total, record)
        for record in job.ran_out
        if record.device == "cuda" and (total := record.total_bytes) and (outside := record.outside_bytes) is not None
    ]
    if messages:
        outside, total, record = max(messages, key=lambda message: message[0])
        requested = record.requested_bytes or 0
        own_limit = record.limit_bytes is not None and (record.free_bytes or 0) >= requested
        if outside < max(LEAST_OUTSIDE * total, requested, _LEAST_BYTES) or own_limit:
            return _TEXTS.ruled_out(size=Bytes(outside))
        if record.in_use_bytes is None and (record.free_bytes or 0) >= requested > 0:
            return _TEXTS.undecided(free=Bytes(record.free_bytes or 0), size=Bytes(requested))
        holder = "unknown" if record.in_use_bytes is None and record.listed_bytes is None else "others"
        holder = holder if holder == "unknown" or 2 * record.other_bytes > outside else "own"
        outside = record.other_bytes if holder == "others" else outside  # Without this process's own CUDA context.
        return shared.confirmed(
            job,
            _TEXTS.facts(
                holder,
                where=shared.rank_names([record.rank]) if record.rank is not None else "the device",
                outside=Bytes(outside),
                total=Bytes(total),
                requested=Bytes(requested),
            ),
            confidence=PROBABLE if holder == "unknown" else CERTAIN,
            ranks=() if record.rank is None else (record.rank,),
            cost_bytes=outside,
            evidence=(record.item,),
        )
    if job.on_cpu:
        return shared.TEXTS.ruled_out("on_cpu")
    last = [rank.steps[-1].peak_reserved_bytes or 0 for rank in job.ranks.values() if rank.steps]
    used = [device.peak_bytes for node in job.nodes.values() for device in node.devices.values()]
    if not any(last) or not used:
        return shared.not_recorded(job, "device")
    return _TEXTS.ruled_out(size=Bytes(max(0, max(used) - max(last))))


CAUSE = declared(__file__, read, decide)
