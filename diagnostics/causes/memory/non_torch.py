"""`memory.non_torch`: memory outside PyTorch's allocator (NCCL, libraries, other processes) is what was missing."""

from dataclasses import dataclass

from diagnostics.analysis.memory.job import JobMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import Finding, Remedy, Text
from diagnostics.contract.formatting import Bytes, bytes_text

ID = "memory.non_torch"
LEAST_OUTSIDE = 0.15
"""Of the device; a CUDA context takes 0.3 to 0.6 GiB, a communicator of NCCL 0.5 to 0.7 GiB (4 x A100)."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Memory of one device that PyTorch's allocator of this process does not hold."""

    rank: int | None
    outside_bytes: int
    other_bytes: int = 0
    """Of it in other processes."""
    total_bytes: int = 0
    """0 = not known."""
    requested_bytes: int = 0

    def text(self, finding: Finding) -> Text:
        """Say who holds how much, and how to get it back."""
        outside, total = bytes_text(self.outside_bytes), bytes_text(self.total_bytes)
        others = self.other_bytes > self.outside_bytes / 2
        who = "other processes" if others else "this process outside PyTorch (NCCL, CUDA libraries)"
        where = shared.rank_names([self.rank]) if self.rank is not None else "the device"
        summary = f"On {where} {outside} of {total} is held by {who}; "
        summary += f"the request of {bytes_text(self.requested_bytes)} would have fitted."
        change = "NCCL_BUFFSIZE=1048576 NCCL_MAX_CTAS=8, and fewer process groups"
        remedy = Remedy("environment", change, "each communicator holds its own buffers", f"part of {outside}")
        if others:
            change = "end the other processes on that device, or give each rank its own"
            change += " (torch.cuda.set_device(local_rank))"
            remedy = Remedy("code", change, "one process per device has all of its memory", outside)
        return Text(summary=summary, measured=f"{outside} of {total} outside PyTorch", remedies=(remedy,))


def decide(job: JobMemory) -> list[Finding]:
    """Subtract what PyTorch holds from what is in use on the device."""
    decoded = [
        (Outside(one.rank, outside, one.other_bytes, one.total_bytes, one.requested_bytes or 0), one)
        for one in job.ran_out
        if one.device == "cuda" and one.total_bytes and (outside := one.outside_bytes) is not None
    ]
    if decoded:
        facts, record = max(decoded, key=lambda item: item[0].outside_bytes)
        is_large = facts.outside_bytes >= max(LEAST_OUTSIDE * facts.total_bytes, facts.requested_bytes)
        own_limit = record.limit_bytes is not None and (record.free_bytes or 0) >= facts.requested_bytes
        if not is_large or own_limit:
            return _little(facts.outside_bytes)
        return shared.confirmed(
            ID,
            job,
            facts,
            confidence=0.9,
            ranks=() if facts.rank is None else (facts.rank,),
            cost_bytes=facts.outside_bytes,
            evidence=(record.item,),
        )
    if job.on_cpu:
        return shared.absent(ID, shared.ON_CPU)
    last = [rank.steps[-1].peak_reserved_bytes or 0 for rank in job.ranks.values() if rank.steps]
    used = [device.peak_bytes for node in job.nodes.values() for device in node.devices.values()]
    if not any(last) or not used:
        return shared.undecided(ID, shared.NotRecorded("device", job.is_dtk))
    return _little(max(0, max(used) - max(last)))


def _little(outside_bytes: int) -> list[Finding]:
    return shared.ruled_out(ID, "Little is held outside PyTorch.", "{size} outside PyTorch", size=Bytes(outside_bytes))


CAUSE = Cause(
    id=ID,
    title="memory outside torch's allocator",
    outcome="at_risk",
    branch="memory.lost",
    facts=read,
    decide=decide,
    decided_from="telemetry or out-of-memory text against torch's own figures",
    remedy="look for other processes; fewer communicators; NCCL_MAX_CTAS",
    source="nccl issues 864, 964: 544 to 688 MB for each communicator on 4 x A100",
)
