"""Where memory ran out, by log lines and error files: one record per rank. Decides nothing."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.contract.files import patterns_beside
from diagnostics.contract.findings import EvidenceItem
from diagnostics.evidence.endings import allocator_of
from diagnostics.evidence.logs.patterns import oom_parts
from diagnostics.evidence.model import Evidence, Frame, RankError, shortened
from diagnostics.evidence.readers.snapshot import Snapshot

_FIGURES = (
    "requested_bytes", "total_bytes", "free_bytes", "allocated_bytes", "unused_bytes", "in_use_bytes", "listed_bytes",
    "listed_processes", "limit_bytes",
)  # fmt: skip
"""Figures of a message (`evidence/logs/patterns.py`), and fields of `RanOut`."""
_TEXT = patterns_beside(__file__)
"""What each of them matches is said in the table."""


class RanOut(Struct, frozen=True):
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
    """By this process, memory outside PyTorch included."""
    listed_bytes: int | None = None
    """By processes that the message lists by number."""
    listed_processes: int | None = None
    limit_bytes: int | None = None
    """The fraction of the device that the process allows itself, where that was the limit."""
    step: int | None = None
    site: Frame | None = None
    """The innermost line outside torch, where there is a traceback."""
    placing: str = ""
    """Function that was placing model states on the device, as the traceback shows; empty = none, or not known."""
    saving: str = ""
    """Function that was gathering a full state dict, or how FSDP says that it was; empty = none, or not known."""

    @property
    def reserved_bytes(self) -> int | None:
        """What PyTorch's allocator holds."""
        return None if self.allocated_bytes is None or self.unused_bytes is None else self._own()

    @property
    def outside_bytes(self) -> int | None:
        """In use on the device, but neither in tensors nor reserved by this process's allocator."""
        if self.reserved_bytes is None:
            return None
        if self.total_bytes is not None and self.free_bytes is not None:
            return max(0, self.total_bytes - self.free_bytes - self._own())
        return None if self.in_use_bytes is None else max(0, self.in_use_bytes - self._own()) + (self.listed_bytes or 0)

    @property
    def other_bytes(self) -> int:
        """Of it in other processes: those that the message lists, or what neither this process nor nobody holds.

        In a container torch does not recognise its own process by its number and lists it among the others.
        """
        listed = self.listed_bytes or 0
        if self.in_use_bytes is None:
            is_own = self.listed_processes == 1 and listed >= self._own()
            return 0 if is_own else max(0, listed - self._own())
        if self.total_bytes is None or self.free_bytes is None:
            return listed
        return max(listed, self.total_bytes - self.free_bytes - self.in_use_bytes)

    def _own(self) -> int:
        return (self.allocated_bytes or 0) + (self.unused_bytes or 0)


def ran_out(evidence: Evidence) -> list[RanOut]:
    """Return one record for each rank that is known to have run out, by rank; the message with most figures counts."""
    records: dict[int | None, RanOut] = {}
    in_logs = []
    for fact in evidence.facts:
        if fact.kind in ("cuda_oom", "cpu_oom"):
            item = fact.quoted()
            record = _decoded(fact.rank, fact.kind.partition("_")[0], fact.fields, item)
            in_logs.append(replace(record, saving="clone" if _TEXT["clone_failed"].search(fact.text) else ""))
    for record in filter(None, (*in_logs, *map(_of_error, evidence.errors))):
        other = records.get(record.rank, record)
        better, worse = (record, other) if _figures(record) > _figures(other) else (other, record)
        both = {name: getattr(better, name) or getattr(worse, name) for name in ("step", "site", "placing", "saving")}
        records[record.rank] = replace(better, **both)
    if len(records) > 1:
        records.pop(None, None)
    return [records[rank] for rank in sorted(records, key=lambda rank: -1 if rank is None else rank)]


def of_snapshot(rank: int, file: str, snapshot: Snapshot) -> RanOut | None:
    """Return the newest request that could not be met, as a snapshot of the allocator recorded it."""
    if not snapshot.out_of_memory:
        return None
    end = snapshot.out_of_memory[0]
    item = EvidenceItem("snapshot", file, f"oom event: size={end.requested_bytes}, device_free={end.free_bytes}")
    record = RanOut(rank, "cuda", item, end.requested_bytes, None, end.free_bytes, end.allocated_bytes)
    unused = max(0, end.reserved_bytes - end.allocated_bytes)
    return replace(record, unused_bytes=unused, site=end.site, **_purposes(end.places))


def _figures(record: RanOut) -> int:
    return sum(getattr(record, name) is not None for name in _FIGURES)


def _of_error(error: RankError) -> RanOut | None:
    """Read the message of an error file, which holds the whole text."""
    device = allocator_of(error.type, error.message)
    if not device:
        return None
    item = EvidenceItem("error", error.file, shortened(f"{error.type}: {error.message}", 300), error.line or None)
    site = next((frame for frame in error.frames if "/torch/" not in frame.file), None)
    record = _decoded(error.rank, device, oom_parts(error.message), item)
    places = [f"{frame.file} {frame.function}" for frame in error.frames]
    return replace(record, step=error.step, site=site, **_purposes(places))


def _purposes(places: Iterable[str]) -> dict[str, str]:
    """Return the functions that were placing model states and saving them, of file and function of each frame."""
    place_of = {key: [place for place in places if _TEXT[key].search(place)][:1] for key in ("placing", "saving")}
    return {key: "".join(place).rpartition(" ")[2] for key, place in place_of.items()}


def _decoded(rank: int | None, device: str, fields: Mapping[str, object], item: EvidenceItem) -> RanOut:
    figures: dict[str, Any] = {name: fields[name] for name in _FIGURES if isinstance(fields.get(name), int)}
    reserved, allocated = fields.get("reserved_bytes"), figures.get("allocated_bytes")
    if "unused_bytes" not in figures and isinstance(reserved, int) and allocated is not None:
        figures["unused_bytes"] = max(0, reserved - allocated)  # torch before 2.1 gives the sum
    return RanOut(rank, device, item, **figures)
