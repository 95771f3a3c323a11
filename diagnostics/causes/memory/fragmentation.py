"""`memory.fragmentation`: the allocator holds enough memory for a request, but in pieces that are too small."""

from collections.abc import Iterator

from msgspec import Struct

from diagnostics.analysis.memory.job import JobMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import POSSIBLE, EvidenceItem, Finding
from diagnostics.contract.formatting import UNNAMED

_TEXTS = Texts(__file__)
LEAST_UNUSED = 0.3  # Minimum share of the reserved memory.
LEAST_BYTES = 256 << 20  # Minimum of unused bytes if no request failed but the allocator had to retry.
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch reads the first since 2.9 and the second before; its error message names the one that it reads."""


class Unused(Struct, frozen=True):
    """Memory of a rank that the allocator has reserved but that no tensor uses."""

    rank: int | None
    unused_bytes: int
    reserved_bytes: int
    item: EvidenceItem
    failed: bool = False
    """Whether a request failed."""
    requested_bytes: int | None = None
    """Size of the failed request; None if not known, such as for a request beyond 1 EB."""
    limit_bytes: int | None = None
    """Memory that the process may use; None if not known."""
    retries: int = 0
    free_bytes: int = 0
    """Free memory on the device, if the process may use all of it."""

    @property
    def had_room(self) -> bool:
        """Whether the device had room for the request, in which case the reason for the failure is not known."""
        return 0 < (self.requested_bytes or 0) <= self.free_bytes

    @property
    def is_cause(self) -> bool:
        """Whether the request would fit into the unused memory if it were contiguous, or the allocator had to retry.

        A request that would not fit next to the tensors even without fragmentation needs more memory instead.
        """
        if self.unused_bytes < LEAST_UNUSED * self.reserved_bytes or not self.reserved_bytes:
            return False
        if not self.failed:
            return self.retries > 0 and self.unused_bytes >= LEAST_BYTES
        if self.requested_bytes is None or self.requested_bytes > self.unused_bytes or self.had_room:
            return False
        needed = self.reserved_bytes - self.unused_bytes + self.requested_bytes
        return self.limit_bytes is None or needed <= self.limit_bytes


def decide(job: JobMemory) -> Finding:
    """Compare the reserved but unused memory with the request that failed."""
    records = [
        Unused(
            end.rank,
            end.unused_bytes,
            end.reserved_bytes,
            end.item,
            failed=True,
            requested_bytes=end.requested_bytes,
            limit_bytes=limit,
            free_bytes=0 if end.limit_bytes else end.free_bytes or 0,
        )
        for end in job.ran_out
        if end.unused_bytes is not None and end.reserved_bytes is not None
        for limit in [end.limit_bytes or end.total_bytes]
    ]
    records += _of_recordings(job)
    if not records:
        return shared.TEXTS.ruled_out("on_cpu") if job.on_cpu else shared.not_recorded(job, "allocator")
    guilty = [record for record in records if record.is_cause]
    worst = max(guilty or records, key=lambda record: record.unused_bytes)
    if not guilty:
        if worst.had_room and worst.requested_bytes:
            return _TEXTS.undecided("open", facts=worst)
        fits = not worst.failed or worst.unused_bytes < LEAST_UNUSED * worst.reserved_bytes
        row = "none" if fits else "unknown_size" if worst.requested_bytes is None else "too_large"
        return _TEXTS.ruled_out(row, facts=worst)
    settings = [value for own in job.evidence.environment.values() for value in own.values()]
    recorded = any(rank.snapshot and rank.snapshot.settings.get("expandable_segments") for rank in job.ranks.values())
    is_expandable = recorded or any("expandable_segments:True" in value for value in settings)
    # The job's own messages show which variable its version of torch reads.
    texts = [error.message for error in job.evidence.errors] + [fact.text for fact in job.evidence.facts]
    named = [name for name in _VARIABLES if any(f"{name}=" in text for text in texts)]
    name = named[0] if len(named) == 1 else ""  # Otherwise it depends on the version of torch.
    ranks = {UNNAMED if record.rank is None else record.rank for record in guilty}
    return shared.confirmed(
        job,
        _TEXTS.facts(
            ("failed" if worst.failed else "retried", "is_expandable" if is_expandable else "expandable"),
            who=shared.rank_names(ranks),
            facts=worst,
            variable=_TEXTS.phrase("variable" if name else "variables", name=name, names=_VARIABLES),
        ),
        confidence=POSSIBLE,
        ranks=ranks,
        cost_bytes=worst.unused_bytes,
        evidence=(worst.item,),
    )


def _of_recordings(job: JobMemory) -> Iterator[Unused]:
    for rank in job.ranks.values():
        snapshot = rank.snapshot
        for device in snapshot.devices.values() if snapshot is not None and not snapshot.out_of_memory else ():
            item = EvidenceItem("snapshot", rank.snapshot_file, _TEXTS.phrase("blocks", device=device))
            yield Unused(rank.rank, device.unused_bytes, device.reserved_bytes, item)
        if (steps := [step for step in rank.steps if step.reserved_bytes]) and (last := steps[-1]):
            reserved = last.peak_reserved_bytes or last.reserved_bytes or 0
            unused = max(0, reserved - (last.peak_allocated_bytes or last.allocated_bytes or 0))
            retries = last.allocation_retries or 0
            detail = _TEXTS.phrase("retries", step=last.step, retries=retries)
            item = EvidenceItem("timeline", rank.timeline_file, detail)
            yield Unused(rank.rank, unused, reserved, item, retries=retries)


CAUSE = declared(__file__, read, decide)
