"""Out-of-memory failures in log lines, error files and snapshots: one record per rank. Decides nothing."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.contract.files import patterns_beside, table_beside
from diagnostics.contract.findings import EvidenceItem
from diagnostics.evidence.endings import allocator_of
from diagnostics.evidence.logs.patterns import oom_parts
from diagnostics.evidence.memory.history import SAVING
from diagnostics.evidence.model import Evidence, Frame, RankError, shortened
from diagnostics.evidence.readers.snapshot import Snapshot

_OF_FRAMES, _FIGURES = (list[str](table_beside(__file__)[name]) for name in ("of_frames", "figures"))
"""Figures in an out-of-memory message (`evidence/logs/patterns.py`); also fields of `RanOut`."""
_TEXT = {**patterns_beside(__file__, "texts"), "saving": SAVING}  # Patterns by name, documented in the table.


class RanOut(Struct, frozen=True):
    """One rank's out-of-memory message, decoded. A field is None if the message does not include it."""

    rank: int | None
    device: str
    """Type of device that ran out: `cuda` or `cpu`."""
    item: EvidenceItem
    requested_bytes: int | None = None
    total_bytes: int | None = None
    """Capacity of the device."""
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    """Bytes that PyTorch has allocated to tensors."""
    unused_bytes: int | None = None
    """Bytes reserved by PyTorch but not allocated to a tensor."""
    in_use_bytes: int | None = None
    """Bytes in use by this process, including memory outside PyTorch."""
    listed_bytes: int | None = None
    """Bytes in use by the processes that the message lists by PID."""
    listed_processes: int | None = None
    limit_bytes: int | None = None
    """Fraction of the device that the process may allocate, if that limit was exceeded."""
    step: int | None = None
    site: Frame | None = None
    """Innermost frame outside torch, if there is a traceback."""
    placing: str = ""
    """Function in the traceback that was moving model states to the device; empty if none, or unknown."""
    updates: bool = False
    """Whether the optimizer was updating the parameters, or allocating its states."""
    saving: str = ""
    """Function that was gathering a full state dict, or FSDP's message about it; empty if none, or unknown."""

    @property
    def reserved_bytes(self) -> int | None:
        """Bytes reserved by PyTorch's allocator; None if unknown."""
        return None if self.allocated_bytes is None or self.unused_bytes is None else self._own()

    @property
    def outside_bytes(self) -> int | None:
        """Bytes in use on the device that this process's allocator has not reserved; None if unknown."""
        if self.reserved_bytes is None:
            return None
        if self.total_bytes is not None and self.free_bytes is not None:
            return max(0, self.total_bytes - self.free_bytes - self._own())
        return None if self.in_use_bytes is None else max(0, self.in_use_bytes - self._own()) + (self.listed_bytes or 0)

    @property
    def other_bytes(self) -> int:
        """The part of `outside_bytes` in other processes: those listed, or the used bytes without a known owner.

        In a container torch does not recognise its own process by its PID and lists it among the others.
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
    """Return one record per rank that ran out of memory, sorted by rank; the message with the most figures is used."""
    records: dict[int | None, RanOut] = {}
    in_logs = []
    for fact in evidence.facts:
        if fact.kind in ("cuda_oom", "cpu_oom"):
            item = fact.quoted()
            record = _decoded(fact.rank, fact.kind.partition("_")[0], fact.fields, item)
            in_logs.append(replace(record, saving="clone" if _TEXT["clone_failed"].search(fact.text) else ""))
    for record in filter(None, (*in_logs, *map(_of_error, evidence.errors))):
        other = records.get(record.rank, record)
        fuller, sparser = (record, other) if _figures(record) > _figures(other) else (other, record)
        both = {name: getattr(fuller, name) or getattr(sparser, name) for name in _OF_FRAMES}
        records[record.rank] = replace(fuller, **both)
    if len(records) > 1:
        records.pop(None, None)
    return [records[rank] for rank in sorted(records, key=lambda rank: -1 if rank is None else rank)]


def of_snapshot(rank: int | None, file: str, snapshot: Snapshot) -> RanOut | None:
    """Return the newest failed request that an allocator snapshot recorded; None if there is none."""
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
    """Decode the message of an error file, which holds the full text; None if it is not an out-of-memory error."""
    device = allocator_of(error.type, error.message)
    if not device:
        return None
    item = EvidenceItem("error", error.file, shortened(f"{error.type}: {error.message}"), error.line or None)
    site = next((frame for frame in error.frames if "/torch/" not in frame.file), None)
    record = _decoded(error.rank, device, oom_parts(error.message), item)
    places = [f"{frame.file} {frame.function}" for frame in error.frames]
    updates = bool(_TEXT["updates"].match("\n".join(places)))
    return replace(record, step=error.step, site=site, updates=updates, **_purposes(places))


def _purposes(places: Iterable[str]) -> dict[str, str]:
    """Return the functions that were placing and saving model states, from the file and function of each frame."""
    place_of = {key: [place for place in places if _TEXT[key].search(place)][:1] for key in ("placing", "saving")}
    return {key: "".join(place).rpartition(" ")[2] for key, place in place_of.items()}


def _decoded(rank: int | None, device: str, fields: Mapping[str, object], item: EvidenceItem) -> RanOut:
    figures: dict[str, Any] = {name: fields[name] for name in _FIGURES if isinstance(fields.get(name), int)}
    reserved, allocated = fields.get("reserved_bytes"), figures.get("allocated_bytes")
    if "unused_bytes" not in figures and isinstance(reserved, int) and allocated is not None:
        figures["unused_bytes"] = max(0, reserved - allocated)  # torch before 2.1 gives the sum
    return RanOut(rank, device, item, **figures)
