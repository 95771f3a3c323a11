"""Memory that no tensor uses: `memory.fragmentation` and `memory.non_torch`."""

from collections.abc import Iterator
from dataclasses import dataclass

from diagnostics.analysis.memory.job import RankMemory, Situation
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Remedy, Where
from diagnostics.detectors.memory.say import ranks, size
from diagnostics.evidence.model import Evidence

SPLIT = "memory.fragmentation"
OUTSIDE = "memory.non_torch"
LEAST_UNUSED = 0.2
"""Of what is reserved: below this the caching allocator works as it should."""
LEAST_OUTSIDE = 0.15
"""Of the device; a CUDA context and one communicator of NCCL take less."""
LEAST_BYTES = 256 << 20
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch reads the first since 2.9, the second before; its own message names the one that it reads."""


@dataclass(frozen=True, slots=True)
class _Unused:
    """Reserved and unused memory of one rank."""

    rank: int | None
    unused_bytes: int
    reserved_bytes: int
    requested_bytes: int | None
    """That could not be had; None when memory did not run out."""
    item: EvidenceItem
    retries: int = 0
    where: Where | None = None

    @property
    def part(self) -> float:
        """Unused of what is reserved."""
        return self.unused_bytes / self.reserved_bytes if self.reserved_bytes else 0.0

    @property
    def is_cause(self) -> bool:
        """What was free would have been enough in one piece; or the allocator had to give back and ask again."""
        if self.requested_bytes is not None:
            return self.unused_bytes >= self.requested_bytes and self.part >= LEAST_UNUSED
        return self.retries > 0 and self.part >= LEAST_UNUSED and self.unused_bytes >= LEAST_BYTES


def _expandable(evidence: Evidence) -> str:
    """The setting under the name that the job's torch reads; under both where that is not known."""
    texts = [error.message for error in evidence.errors] + [fact.text for fact in evidence.facts]
    named = [name for name in _VARIABLES if any(f"{name}=" in text for text in texts)]
    if len(named) == 1:
        return f"{named[0]}=expandable_segments:True"
    return f"{_VARIABLES[0]}=expandable_segments:True (before torch 2.9: {_VARIABLES[1]})"


def fragmentation(situation: Situation) -> Finding:
    """Whether the allocator reserves far more than tensors use, so that a request fails or is slow."""
    found = list(_unused(situation))
    if not found:
        on_cpu = any(one.device == "cpu" for one in situation.ran_out) or _is_cpu(situation)
        if on_cpu:
            why = "the CPU's allocator reserves nothing"
            return Finding(cause=SPLIT, status="ruled_out", summary=f"The run is on CPU: {why}.", measured=why)
        missing = "record=full" if situation.is_dtk else "torch.cuda.memory._dump_snapshot() when memory runs out"
        return Finding(cause=SPLIT, status="undecided", summary="The allocator was not recorded.", missing=missing)
    guilty = [one for one in found if one.is_cause]
    worst = max(guilty or found, key=lambda one: one.unused_bytes)
    measured = f"{size(worst.unused_bytes)} of {size(worst.reserved_bytes)} reserved is in no tensor"
    if not guilty:
        return Finding(cause=SPLIT, status="ruled_out", summary="What is reserved is used.", measured=measured)
    return _fragmented(situation, guilty, worst, measured)


def _fragmented(situation: Situation, guilty: list[_Unused], worst: _Unused, measured: str) -> Finding:
    blamed = tuple(sorted({one.rank for one in guilty if one.rank is not None}))
    who = ranks(blamed) if blamed else "a rank"
    if worst.requested_bytes is not None:
        summary = f"On {who} a request of {size(worst.requested_bytes)} failed while {size(worst.unused_bytes)} of the "
        summary += f"{size(worst.reserved_bytes)} that PyTorch holds was free, in pieces that are too small."
    else:
        summary = (
            f"On {who} PyTorch holds {size(worst.reserved_bytes)}, of which {size(worst.unused_bytes)} is unused, "
        )
        summary += f"and had to give memory back {worst.retries} times to go on."
    already = any(
        "expandable_segments:True" in value for own in situation.evidence.environment.values() for value in own.values()
    )
    saves = f"up to {size(worst.unused_bytes)} of {size(worst.reserved_bytes)}"
    if already:
        remedy = Remedy(
            "code",
            "keep shapes fixed (pad batches) and allocate long-lived tensors first",
            "same sizes fit again",
            saves,
        )
    else:
        remedy = Remedy(
            "environment", _expandable(situation.evidence), "segments grow in place, so free pieces join", saves
        )
    return Finding(
        cause=SPLIT,
        status="confirmed",
        summary=summary,
        confidence=0.9 if worst.requested_bytes is not None else 0.7,
        ranks=blamed,
        where=(worst.where,) if worst.where else (),
        cost=Cost(worst.unused_bytes, "bytes"),
        evidence=(worst.item,),
        remedies=(remedy,),
        measured=measured,
    )


def _unused(situation: Situation) -> Iterator[_Unused]:
    for one in situation.ran_out:
        if one.allocated_bytes is not None and one.unused_bytes is not None:
            reserved = one.allocated_bytes + one.unused_bytes
            yield _Unused(one.rank, one.unused_bytes, reserved, one.requested_bytes or 0, one.item)
    for rank in situation.all():
        yield from _of_snapshot(rank)
        yield from _of_timeline(rank)


def _of_snapshot(rank: RankMemory) -> Iterator[_Unused]:
    snapshot = rank.snapshot
    for device in snapshot.devices.values() if snapshot is not None else ():
        failed = [one for one in snapshot.out_of_memory if one.device == device.device] if snapshot else []
        requested = failed[0].requested_bytes if failed else None
        site = failed[0].site if failed else None
        largest = size(device.largest_free_bytes)
        detail = f"{device.segments} segments, {device.free_blocks} free blocks, the largest {largest}"
        yield _Unused(
            rank.rank,
            device.unused_bytes,
            device.reserved_bytes,
            requested,
            EvidenceItem("snapshot", rank.snapshot_file, detail),
            where=Where(rank.rank, site.file, site.line, site.function, "the request that failed") if site else None,
        )


def _of_timeline(rank: RankMemory) -> Iterator[_Unused]:
    steps = [one for one in rank.timeline.steps if one.reserved_bytes] if rank.timeline is not None else []
    if steps:
        last = steps[-1]
        reserved = last.peak_reserved_bytes or last.reserved_bytes or 0
        used = last.peak_allocated_bytes or last.allocated_bytes or 0
        item = EvidenceItem("timeline", rank.timeline_file, f"step {last.step}: {last.allocation_retries or 0} retries")
        yield _Unused(rank.rank, max(0, reserved - used), reserved, None, item, last.allocation_retries or 0)


def _is_cpu(situation: Situation) -> bool:
    curves = [rank.curve for rank in situation.all() if rank.curve is not None]
    steps = [rank.timeline.steps for rank in situation.all() if rank.timeline is not None and rank.timeline.steps]
    return any(curve.device_type == 0 for curve in curves) or any(
        one[-1].rss_bytes is not None and one[-1].reserved_bytes is None for one in steps
    )


def non_torch(situation: Situation) -> Finding:
    """Whether memory outside PyTorch's allocator (NCCL, libraries, other processes) is what was missing."""
    figures = [(one, one.outside_bytes) for one in situation.ran_out if one.device == "cuda"]
    known = [(one, outside) for one, outside in figures if outside is not None and one.total_bytes]
    for one, outside in sorted(known, key=lambda pair: -pair[1]):
        total = one.total_bytes or 0
        if outside < LEAST_OUTSIDE * total or outside < (one.requested_bytes or 0):
            break
        other = one.other_bytes or 0
        who = "other processes" if other > outside / 2 else "this process outside PyTorch (NCCL, CUDA libraries)"
        summary = f"On {ranks([one.rank]) if one.rank is not None else 'the device'} {size(outside)} of {size(total)} "
        summary += f"is held by {who}; the request of {size(one.requested_bytes or 0)} would have fitted."
        return Finding(
            cause=OUTSIDE,
            status="confirmed",
            summary=summary,
            confidence=0.9,
            ranks=() if one.rank is None else (one.rank,),
            cost=Cost(outside, "bytes"),
            evidence=(one.item,),
            remedies=(_outside_remedy(other > outside / 2, outside),),
            measured=f"{size(outside)} of {size(total)} outside PyTorch",
        )
    if known:
        text = f"{size(max(outside for _, outside in known))} outside PyTorch"
        return Finding(cause=OUTSIDE, status="ruled_out", summary="Little is held outside PyTorch.", measured=text)
    return _by_telemetry(situation)


def _outside_remedy(others: bool, outside: int) -> Remedy:
    if others:
        change = "end the other processes on that device, or give each rank its own (torch.cuda.set_device(local_rank))"
        return Remedy("code", change, "one process per device has all of its memory", size(outside))
    change = "NCCL_BUFFSIZE=1048576 NCCL_MAX_CTAS=8, and fewer process groups"
    return Remedy("environment", change, "each communicator holds its own buffers", f"part of {size(outside)}")


def _by_telemetry(situation: Situation) -> Finding:
    """Without an out-of-memory text: the driver's figure beside the allocator's."""
    if _is_cpu(situation) or any(one.device == "cpu" for one in situation.ran_out):
        why = "the run is on CPU"
        return Finding(cause=OUTSIDE, status="ruled_out", summary=f"No device memory: {why}.", measured=why)
    reserved = [
        one.peak_reserved_bytes
        for rank in situation.all()
        if rank.timeline is not None
        for one in rank.timeline.steps[-1:]
        if one.peak_reserved_bytes
    ]
    used = [
        (device.peak_bytes, device.total_bytes or 0) for t in situation.nodes.values() for device in t.devices.values()
    ]
    if not reserved or not used:
        missing = "record=full" if situation.is_dtk else "the text of the out-of-memory error, or nvidia-smi beside it"
        return Finding(
            cause=OUTSIDE, status="undecided", summary="What the device held was not recorded.", missing=missing
        )
    outside = max(0, max(size_bytes for size_bytes, _ in used) - max(reserved))
    summary = "Memory outside PyTorch did not run the device full."
    return Finding(cause=OUTSIDE, status="ruled_out", summary=summary, measured=f"{size(outside)} outside PyTorch")
