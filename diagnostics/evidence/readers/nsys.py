"""Nsight Systems exports (sqlite): read-only, bounded, into the same columns as a profiler trace.

Owns the tables of the export. One file can hold several devices: each becomes a trace of its own.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from diagnostics.evidence.limits import Limits, TooLargeError
from diagnostics.evidence.reader import Reader, opens
from diagnostics.evidence.trace.events import Lane, Message, collective_word
from diagnostics.evidence.trace.model import Trace

_Answer = TypeVar("_Answer")
_MAGIC = b"SQLite format 3\x00"
_TABLES = {"CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"}
_STEPS_PER_CHECK = 1_000_000
_CHECKS = 5_000
"""Instructions of sqlite's machine that a query may take: a view with a recursive query ends there."""
_NCCL = re.compile(r"^nccl([A-Z]\w+)$")
_STEP = re.compile(r"^(?:step|iteration|iter|ProfilerStep)[ _#:]*(\d{1,12})$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NsysFile:
    """An export on disk."""

    path: Path
    file: str
    """Relative to the evidence's root."""
    rank: int | None
    """As its name says; used when the file holds one device."""
    limits: Limits

    def load(self) -> list[Trace]:
        """Return a trace for each device, by device id.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged, too large, or no export with kernels.
        """
        if self.path.stat().st_size > self.limits.stream_bytes:
            raise TooLargeError(f"over {self.limits.stream_bytes >> 20} MiB; raise it with --limit-scale")
        return self._ask(_Reader.traces)

    def began_s(self) -> float | None:
        """When the recording began, seconds since 1970; None when the export does not tell."""
        with suppress(ValueError):
            return self._ask(_Reader.began_s)
        return None

    def _ask(self, question: "Callable[[_Reader], _Answer]") -> _Answer:
        try:
            with closing(
                sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
            ) as connection:
                return question(_Reader(connection, self))
        except (sqlite3.Error, OverflowError, TypeError, UnicodeDecodeError) as problem:
            raise ValueError(f"damaged sqlite: {problem}") from problem


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is an sqlite database; `load` finds out whether it is an export."""
    return head.startswith(_MAGIC)


class _Reader:
    """Fills one trace per device."""

    def __init__(self, connection: sqlite3.Connection, file: NsysFile) -> None:
        self.connection = connection
        self.file = file
        self.checks = 0
        self.names: dict[str, int] = {}
        self.traces_by_device: dict[int, Trace] = {}
        self.lanes: dict[int, dict[Lane, int]] = {}
        connection.set_progress_handler(self._progress, _STEPS_PER_CHECK)
        connection.execute("PRAGMA trusted_schema=OFF")

    def began_s(self) -> float | None:
        """Return the start time of the session."""
        for row in self._rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"):
            return row[0] / 1e9 if isinstance(row[0], int) and row[0] > 0 else None
        return None

    def traces(self) -> list[Trace]:
        """All devices."""
        tables = {str(row[0]) for row in self._rows("SELECT name FROM sqlite_master WHERE type='table'")}
        if not tables >= _TABLES:
            raise ValueError("an sqlite database, but no Nsight export with kernels")
        launches = self._launches(tables)
        owners = self._kernels(launches)
        for table, name in (("CUPTI_ACTIVITY_KIND_MEMCPY", "Memcpy"), ("CUPTI_ACTIVITY_KIND_MEMSET", "Memset")):
            if table in tables:
                self._memory(table, name, launches)
        self._syncs(tables, owners)
        if "NVTX_EVENTS" in tables:
            self._marks(owners)
        found = [self.traces_by_device[device] for device in sorted(self.traces_by_device)]
        for n, trace in enumerate(found):
            trace.rank = (self.file.rank if self.file.rank is not None else 0) if len(found) == 1 else n
            trace.world_size = len(found) if len(found) > 1 else None
            trace.first_ns, trace.last_ns = min(trace.device.start), max(trace.device.end)
        return found

    def _progress(self) -> int:
        self.checks += 1
        return int(self.checks > _CHECKS)

    def _rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        cursor = self.connection.execute(f"{query} LIMIT {self.file.limits.spans}")
        while rows := cursor.fetchmany(4096):
            yield from rows

    def _trace(self, device: int) -> Trace:
        if device not in self.traces_by_device:
            if len(self.traces_by_device) >= 1024:
                raise ValueError("over 1,024 devices")
            self.traces_by_device[device] = Trace(file=self.file.file)
            self.lanes[device] = {}
        return self.traces_by_device[device]

    def _lane(self, device: int, owner: int, line: int) -> int:
        lanes = self.lanes[device]
        lane = Lane(owner, line)
        if lane not in lanes:
            lanes[lane] = len(lanes)
            self.traces_by_device[device].lanes.append(lane)
        return lanes[lane]

    def _name(self, trace: Trace, text: object) -> int:
        """Names are shared by all devices of the file."""
        name = str(text or "")
        if name not in self.names:
            self.names[name] = len(self.names)
        index = self.names[name]
        if len(trace.names) <= index:
            known = list(self.names)
            trace.names.extend(known[len(trace.names) :])
        return index

    def _launches(self, tables: set[str]) -> dict[tuple[int, int], tuple[int, int]]:
        """(process, correlation) -> (start, thread)."""
        if "CUPTI_ACTIVITY_KIND_RUNTIME" not in tables:
            return {}
        rows = self._rows("SELECT globalTid, correlationId, start FROM CUPTI_ACTIVITY_KIND_RUNTIME")
        return {(thread >> 24, correlation): (start, thread) for thread, correlation, start in rows if correlation}

    def _add(self, row: tuple[Any, ...], launches: dict[tuple[int, int], tuple[int, int]], memory: int) -> int:
        start, end, device, stream, correlation, process, name = row
        trace = self._trace(device)
        launch, thread = launches.get(((process or 0) >> 24, correlation), (-1, -1))
        trace.device.add(start, max(start, end), self._name(trace, name), self._lane(device, device, stream))
        trace.is_memory.append(memory)
        trace.launch.append(launch)
        trace.launcher.append(self._lane(device, thread >> 24, thread) if thread >= 0 else -1)
        return thread

    def _kernels(self, launches: dict[tuple[int, int], tuple[int, int]]) -> dict[int, int]:
        """All kernels; returns host thread -> device that it launches on."""
        columns = {str(row[1]) for row in self.connection.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
        name = "demangledName" if "demangledName" in columns else "shortName"
        process = "k.globalPid" if "globalPid" in columns else "0"
        owners: dict[int, int] = {}
        for row in self._rows(
            f"SELECT k.start, k.end, k.deviceId, k.streamId, k.correlationId, {process}, s.value "
            f"FROM CUPTI_ACTIVITY_KIND_KERNEL k LEFT JOIN StringIds s ON s.id = k.{name}"
        ):
            thread = self._add(row, launches, 0)
            if thread >= 0:
                owners[thread] = row[2] if owners.get(thread, row[2]) == row[2] else -1
        if not self.traces_by_device:
            raise ValueError("a Nsight export without kernels")
        return owners

    def _memory(self, table: str, name: str, launches: dict[tuple[int, int], tuple[int, int]]) -> None:
        columns = {str(row[1]) for row in self.connection.execute(f"PRAGMA table_info({table})")}
        process = "globalPid" if "globalPid" in columns else "0"
        for row in self._rows(f"SELECT start, end, deviceId, streamId, correlationId, {process} FROM {table}"):
            if row[2] in self.traces_by_device:
                self._add((*row, name), launches, 1)

    def _syncs(self, tables: set[str], owners: dict[int, int]) -> None:
        """Add the calls in which the host waits for the device."""
        if "CUPTI_ACTIVITY_KIND_RUNTIME" not in tables:
            return
        for start, end, thread, name in self._rows(
            "SELECT r.start, r.end, r.globalTid, s.value FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
            "JOIN StringIds s ON s.id = r.nameId WHERE s.value LIKE '%Synchronize%'"
        ):
            for device in self._devices(owners, thread):
                trace = self.traces_by_device[device]
                index = self._name(trace, re.sub(r"_v\d+$", "", str(name)))
                trace.syncs.add(start, max(start, end), index, self._lane(device, thread >> 24, thread))

    def _marks(self, owners: dict[int, int]) -> None:
        """NVTX ranges; NCCL's own ones tell collectives."""
        for start, end, thread, text in self._rows(
            "SELECT n.start, n.end, n.globalTid, coalesce(n.text, s.value) FROM NVTX_EVENTS n "
            "LEFT JOIN StringIds s ON s.id = n.textId WHERE n.end IS NOT NULL"
        ):
            name = str(text or "")
            nccl, step = _NCCL.match(name), _STEP.match(name)
            for device in self._devices(owners, thread or 0):
                trace = self.traces_by_device[device]
                if nccl and not nccl[1].startswith("Group"):
                    trace.mark_messages[len(trace.marks)] = Message(collective_word(nccl[1]))
                index = self._name(trace, f"ProfilerStep#{step[1]}" if step else name)
                trace.marks.add(start, max(start, end), index, self._lane(device, (thread or 0) >> 24, thread or 0))

    def _devices(self, owners: dict[int, int], thread: int) -> list[int]:
        """Devices that a host thread works for; all when it works for several or launches nothing itself."""
        device = owners.get(thread, -1)
        return [device] if device >= 0 else sorted(self.traces_by_device)


READER = Reader(
    kind="nsys",
    title="Nsight sqlite exports",
    recognise=recognise,
    open=opens(NsysFile),
    suffixes=(".sqlite",),
    per_rank="export",
    groups=None,
)
