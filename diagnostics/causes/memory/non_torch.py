"""`memory.non_torch`: memory outside PyTorch's allocator (NCCL, libraries, other processes) is what was missing."""

from diagnostics.analysis.memory.job import JobMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import Finding, Remedy, Text, undecided, worded
from diagnostics.contract.formatting import Bytes, bytes_text

ID = "memory.non_torch"
LEAST_OUTSIDE = 0.15
"""Of the device; a CUDA context takes 0.3 to 0.6 GiB, a communicator of NCCL 0.5 to 0.7 GiB (4 x A100)."""


def _words(
    finding: Finding, rank: int | None, outside_bytes: int, holder: str, total_bytes: int, requested_bytes: int
) -> Text:
    """Say how much of a device is held outside this process's PyTorch, and by whom (`own`, `others` or `unknown`)."""
    outside, total = bytes_text(outside_bytes), bytes_text(total_bytes)
    who = "this process outside PyTorch (NCCL, CUDA libraries)"
    change = "NCCL_BUFFSIZE=1048576 NCCL_MAX_CTAS=8, and fewer process groups"
    remedy = Remedy("environment", change, "each communicator holds its own buffers", f"part of {outside}")
    if holder != "own":
        who = "other processes" if holder == "others" else "other processes, or by this one outside PyTorch"
        change = "" if holder == "others" else "look with nvidia-smi or rocm-smi who holds it; "
        change += (
            "end the other processes on that device, or give each rank its own device "
            "(torch.cuda.set_device(local_rank))"
        )
        remedy = Remedy("code", change, "one process per device has all of its memory", outside)
    where = shared.rank_names([rank]) if rank is not None else "the device"
    return Text(
        summary=(
            f"On {where} {outside} of {total} is held by {who}; the request of {bytes_text(requested_bytes)} would "
            "have fitted."
        ),
        measured=f"{outside} of {total} outside PyTorch",
        remedies=(remedy,),
    )


def decide(job: JobMemory) -> list[Finding]:
    """Subtract what PyTorch holds from what is in use on the device."""
    messages = [
        (outside, total, record)
        for record in job.ran_out
        if record.device == "cuda" and (total := record.total_bytes) and (outside := record.outside_bytes) is not None
    ]
    if messages:
        outside, total, record = max(messages, key=lambda message: message[0])
        requested = record.requested_bytes or 0
        own_limit = record.limit_bytes is not None and (record.free_bytes or 0) >= requested
        if outside < max(LEAST_OUTSIDE * total, requested) or own_limit:
            return _little(outside)
        if record.in_use_bytes is None and (record.free_bytes or 0) >= requested > 0:
            text = "The device had {free} free, more than the {size} that was asked for, so it was not full."
            return [
                undecided(
                    ID, text, "nvidia-smi at that time", free=Bytes(record.free_bytes or 0), size=Bytes(requested)
                )
            ]
        holder = "unknown" if record.in_use_bytes is None and record.listed_bytes is None else "others"
        holder = holder if holder == "unknown" or 2 * record.other_bytes > outside else "own"
        return shared.confirmed(
            ID,
            job,
            worded(
                _words,
                rank=record.rank,
                outside_bytes=outside,
                holder=holder,
                total_bytes=total,
                requested_bytes=requested,
            ),
            confidence=0.8 if holder == "unknown" else 0.9,
            ranks=() if record.rank is None else (record.rank,),
            cost_bytes=outside,
            evidence=(record.item,),
        )
    if job.on_cpu:
        return shared.absent(ID, shared.ON_CPU)
    last = [rank.steps[-1].peak_reserved_bytes or 0 for rank in job.ranks.values() if rank.steps]
    used = [device.peak_bytes for node in job.nodes.values() for device in node.devices.values()]
    if not any(last) or not used:
        return shared.not_recorded(ID, job, "device")
    return _little(max(0, max(used) - max(last)))


def _little(outside_bytes: int) -> list[Finding]:
    return shared.ruled_out(ID, "Little is held outside PyTorch.", "{size} outside PyTorch", size=Bytes(outside_bytes))


CAUSE = declared(__file__, read, decide)
