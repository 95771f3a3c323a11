"""Where memory ran out, by log lines, error files and the run's status: one record a rank. Decides nothing."""

from dataclasses import dataclass, replace

from diagnostics.contract.findings import EvidenceItem, Finding, Where
from diagnostics.evidence.logs.fields import oom_parts, size_bytes
from diagnostics.evidence.model import Evidence, LogFact, RankError, shortened

_CUDA_TYPES = ("OutOfMemoryError", "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")


@dataclass(frozen=True, slots=True)
class RanOut:
    """One rank's out-of-memory message, decoded. None = the message does not say."""

    rank: int | None
    device: str
    """`cuda` or `cpu`."""
    item: EvidenceItem
    requested_bytes: int | None = None
    total_bytes: int | None = None
    """Of the device."""
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    """By PyTorch, in tensors."""
    unused_bytes: int | None = None
    """Reserved by PyTorch but in no tensor."""
    in_use_bytes: int | None = None
    """By the process, memory outside PyTorch included."""
    other_bytes: int | None = None
    """By other processes on the device."""
    limit_bytes: int | None = None
    """The fraction of the device that the process allows itself, where that was the limit."""
    step: int | None = None
    region: str = ""

    @property
    def outside_bytes(self) -> int | None:
        """In use on the device, but neither in tensors nor reserved by this process's allocator."""
        if self.allocated_bytes is None or self.unused_bytes is None:
            return None
        own = self.allocated_bytes + self.unused_bytes
        if self.in_use_bytes is not None:
            return max(0, self.in_use_bytes - own) + (self.other_bytes or 0)
        if self.total_bytes is None or self.free_bytes is None:
            return None
        return max(0, self.total_bytes - self.free_bytes - own)


def ran_out(evidence: Evidence) -> list[RanOut]:
    """One for each rank that is known to have run out, by rank; the message with the most figures counts."""
    found: dict[int | None, RanOut] = {}
    for one in [*map(_of_fact, evidence.facts), *map(_of_error, evidence.errors)]:
        if one is None:
            continue
        other = found.get(one.rank)
        if other is None or _figures(one) > _figures(other):
            found[one.rank] = replace(one, step=one.step or (other.step if other else None))
    if len(found) > 1 and None in found:
        del found[None]
    return [found[key] for key in sorted(found, key=lambda rank: -1 if rank is None else rank)]


def placed(finding: Finding, errors: list[RankError]) -> Finding:
    """The finding with the line in which its ranks ran out, where it names none and a traceback does."""
    if finding.status != "confirmed" or finding.where:
        return finding
    places = []
    for error in errors:
        frame = next((one for one in error.frames if "/torch/" not in one.file), None)
        if frame and error.rank in finding.ranks and _of_error(error) is not None:
            places.append(Where(error.rank, frame.file, frame.line, frame.function, "ran out of memory"))
    return replace(finding, where=tuple(places[:8])) if places else finding


def _figures(one: RanOut) -> int:
    values = (one.requested_bytes, one.total_bytes, one.allocated_bytes, one.unused_bytes, one.in_use_bytes)
    return sum(value is not None for value in values)


def _of_fact(fact: LogFact) -> RanOut | None:
    if fact.kind == "cuda_oom":
        item = EvidenceItem("log", fact.file, shortened(fact.text, 300), fact.line)
        return _cuda(fact.rank, fact.fields, item)
    if fact.kind == "cpu_oom":
        item = EvidenceItem("log", fact.file, shortened(fact.text, 300), fact.line)
        return RanOut(fact.rank, "cpu", item, requested_bytes=_size(fact.fields.get("requested_bytes")))
    return None


def _of_error(error: RankError) -> RanOut | None:
    """The message of an error file holds the whole text."""
    text = error.message
    item = EvidenceItem("error", error.file, shortened(f"{error.type}: {text}", 300), error.line or None)
    if "CUDA out of memory" in text or error.type in _CUDA_TYPES:
        fields: dict[str, object] = dict(oom_parts(text))
        after = text.partition("ried to allocate ")[2] or text.partition("Requested size: ")[2]
        fields["requested_bytes"] = size_bytes(after)
        return replace(_cuda(error.rank, fields, item), step=error.step, region=error.region or "")
    if "DefaultCPUAllocator" in text:
        digits = text.partition("tried to allocate ")[2].partition(" ")[0]
        requested = int(digits) if digits.isdecimal() and len(digits) < 20 else None
        return RanOut(error.rank, "cpu", item, requested, step=error.step, region=error.region or "")
    return None


def _cuda(rank: int | None, fields: dict[str, object], item: EvidenceItem) -> RanOut:
    values = {
        name: _size(fields.get(f"{name}_bytes")) for name in ("requested", "total", "free", "allocated", "in_use")
    }
    unused, reserved = _size(fields.get("reserved_unallocated_bytes")), _size(fields.get("reserved_bytes"))
    if unused is None and reserved is not None and values["allocated"] is not None:
        unused = max(0, reserved - values["allocated"])  # torch before 2.1 gives the sum
    return RanOut(
        rank=rank,
        device="cuda",
        item=item,
        requested_bytes=values["requested"],
        total_bytes=values["total"],
        free_bytes=values["free"],
        allocated_bytes=values["allocated"],
        unused_bytes=unused,
        in_use_bytes=values["in_use"],
        other_bytes=_size(fields.get("other_bytes")),
        limit_bytes=_size(fields.get("allowed_bytes")),
    )


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
