"""Nsight Systems exports (sqlite), read with bounded memory into the same columns as a profiler trace."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from diagnostics.evidence.limits import TooLargeError
from diagnostics.evidence.reader import Handle, Reader, opens
from diagnostics.evidence.trace.model import Indices, Lane, Message, Names, Trace, collective_word, host_work

if TYPE_CHECKING:
    import sqlite3

_Answer = TypeVar("_Answer")
_MAGIC = b"SQLite format 3\x00"
_TABLES = {"CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"}
_Launches = dict[tuple[int, int], tuple[int, int, int]]
"""(process, correlation) -> start and end of the call that launched it, and its thread."""
_STEPS_PER_CHECK = 1_000_000
_CHECKS = 5_000
"""Instructions of sqlite's machine that a query may take: a view with a recursive query ends there."""
_CELL_BYTES = 64 << 10
"""Longest text of a cell: a generated column is as long as it likes. Demangled names stay below 64 KiB."""
_MOST_DEVICES = 64
"""Maximum number of devices of a node: 8 GPUs cut into 7 parts each are 56. Marks count once for each."""
_BATCH = 256
"""Maximum number of rows held at once."""
_ROW_BYTES, _ROWS_FREE = 8, 100_000
_DIRECTION = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device"}
"""Of CUPTI's `CUpti_ActivityMemcpyKind` and of the export's kinds of memory; named as torch's profiler does."""
_NCCL = re.compile(r"^nccl([A-Z]\w+)$")
_STEP = re.compile(r"^(?:step|iteration|iter|ProfilerStep)[ _#:]*(\d{1,12})$", re.IGNORECASE)


class NsysFile(Handle, frozen=True):
    """An export on disk; its rank is used when it holds one device."""

    kind = "nsys"

    def load(self) -> list[Trace]:
        """Return a trace for each device, by device id."""
        if self.path.stat().st_size > self.limits.stream_bytes:
            raise TooLargeError(f"over {self.limits.stream_bytes >> 20} MiB; raise it with --limit-scale")
        return self._ask(_Reader.traces)

    def began_s(self) -> float | None:
        """Return the start of the recording in seconds since 1970; None if the export does not record it."""
        with suppress(ValueError):
            return self._ask(_Reader.began_s)
        return None

    def _ask(self, question: "Callable[[_Reader], _Answer]") -> _Answer:
        import sqlite3  # Here, as few diagnoses need it.

        try:
            uri = f"{self.path.resolve().as_uri()}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _CELL_BYTES)
                return question(_Reader(connection, self))
        except (sqlite3.Error, OverflowError, TypeError, UnicodeDecodeError) as problem:
            raise ValueError(f"damaged sqlite: {problem}") from problem


class _Reader:
    def __init__(self, connection: "sqlite3.Connection", file: NsysFile) -> None:
        self.connection = connection
        self.file = file
        self.listed: list[str] = []
        """Names of all devices, in one list shared by their traces."""
        self.names = Names(self.listed)
        self.name_bytes = 0
        self.traces_by_device: dict[int, Trace] = {}
        self.lanes: dict[int, Indices[Lane]] = {}
        checks = count(1)
        connection.set_progress_handler(lambda: int(next(checks) > _CHECKS), _STEPS_PER_CHECK)
        connection.execute("PRAGMA trusted_schema=OFF")
        # A row of the file takes more bytes than that; more rows come from joins and generated ones only.
        self.rows_left = _ROWS_FREE + file.path.stat().st_size // _ROW_BYTES

    def began_s(self) -> float | None:
        """Return the start time of the session."""
        for row in self._rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"):
            return row[0] / 1e9 if isinstance(row[0], int) and row[0] > 0 else None
        return None

    def traces(self) -> list[Trace]:
        """Return the traces of all devices."""
        tables = {str(row[0]) for row in self._rows("SELECT name FROM sqlite_master WHERE type='table'")}
        if not tables >= _TABLES:
            raise ValueError("an SQLite database, but not an Nsight export with kernels")
        launches: _Launches = {}
        if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
            rows = self._rows("SELECT globalTid, correlationId, start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME")
            launches = {(thread >> 24, number): (*times, thread) for thread, number, *times in rows if number}
        owners = self._kernels(launches)
        for table, name in (("CUPTI_ACTIVITY_KIND_MEMCPY", "Memcpy"), ("CUPTI_ACTIVITY_KIND_MEMSET", "Memset")):
            if table in tables:
                self._memory(table, name, launches)
        self._syncs(tables, owners)
        if "NVTX_EVENTS" in tables:
            self._marks(owners)
        traces = [self.traces_by_device[device] for device in sorted(self.traces_by_device)]
        for n, trace in enumerate(traces):
            trace.rank = (self.file.rank or 0) if len(traces) == 1 else n
            trace.world_size = len(traces) if len(traces) > 1 else None
            trace.first_ns, trace.last_ns = min(trace.device.start), max(trace.device.end)
        return traces

    def _rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        cursor = self.connection.execute(f"{query} LIMIT {self.file.limits.spans}")
        rows_left = self.rows_left
        while rows := cursor.fetchmany(min(_BATCH, max(1, rows_left))):
            rows_left -= len(rows)
            if rows_left < 0:
                raise ValueError("refused: a query gives more rows than the file holds")
            yield from rows

    def _name(self, text: object) -> int:
        name = str(text or "")
        if name not in self.names:
            self.name_bytes += len(name)
            if self.name_bytes > self.file.limits.whole_bytes:
                raise TooLargeError(f"names over {self.file.limits.whole_bytes >> 20} MiB")
        return self.names[name]

    def _add(self, row: tuple[Any, ...], launches: _Launches, memory: int) -> int:
        start, end, device, stream, correlation, process, name = row
        if device not in self.traces_by_device:
            if len(self.traces_by_device) >= _MOST_DEVICES:
                raise ValueError(f"over {_MOST_DEVICES} devices: no node has so many")
            self.traces_by_device[device] = Trace(file=self.file.file, names=self.listed)
            self.lanes[device] = Indices(self.traces_by_device[device].lanes)
        trace = self.traces_by_device[device]
        launch, returned, thread = launches.get(((process or 0) >> 24, correlation), (-1, -1, -1))
        trace.device.add(start, max(start, end), self._name(name), self.lanes[device][device, stream])
        trace.is_memory.append(memory)
        trace.launch.append(launch)
        trace.returned.append(returned)
        trace.launcher.append(lane := self.lanes[device][thread >> 24, thread] if thread >= 0 else -1)
        trace.add_activity(launch, returned, lane)
        return thread

    def _kernels(self, launches: _Launches) -> dict[int, int]:
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
            raise ValueError("an Nsight export without kernels")
        return owners

    def _memory(self, table: str, name: str, launches: _Launches) -> None:
        columns = {str(row[1]) for row in self.connection.execute(f"PRAGMA table_info({table})")}
        extra = [column if column in columns else "NULL" for column in ("bytes", "copyKind", "srcKind", "dstKind")]
        process = "globalPid" if "globalPid" in columns else "0"
        for *row, size, direction, source, target in self._rows(
            f"SELECT start, end, deviceId, streamId, correlationId, {process}, {', '.join(extra)} FROM {table}"
        ):
            if row[2] not in self.traces_by_device:
                continue
            ends = [_MEMORY.get(kind, "?") for kind in (source, target)]
            full = f"{name} {_DIRECTION[direction]} ({' -> '.join(ends)})" if direction in _DIRECTION else name
            trace = self.traces_by_device[row[2]]
            if direction is not None and isinstance(size, int):
                trace.copied_bytes[len(trace.device)] = size
            self._add((*row, full), launches, 1)

    def _syncs(self, tables: set[str], owners: dict[int, int]) -> None:
        """Add the calls in which the host waits for the device, or does other work that keeps it from launching."""
        if "CUPTI_ACTIVITY_KIND_RUNTIME" not in tables:
            return
        for start, end, thread, name in self._rows(
            "SELECT r.start, r.end, r.globalTid, s.value FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
            "JOIN StringIds s ON s.id = r.nameId WHERE s.value LIKE '%Synchronize%' OR s.value LIKE '%Malloc%' "
            "OR s.value LIKE '%Free%' OR s.value LIKE '%Load%' OR s.value GLOB 'cuMem[!cs]*'"
        ):
            call = re.sub(r"_v\d+$", "", str(name))
            if not (is_wait := "Synchronize" in call) and not host_work(call):
                continue
            for device in self._devices(owners, thread):
                trace = self.traces_by_device[device]
                spans = trace.syncs if is_wait else trace.marks
                spans.add(start, max(start, end), self._name(call), self.lanes[device][thread >> 24, thread])

    def _marks(self, owners: dict[int, int]) -> None:
        """Add NVTX ranges; those of NCCL itself show collectives."""
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
                index = self._name(f"ProfilerStep#{step[1]}" if step else name)
                trace.marks.add(start, max(start, end), index, self.lanes[device][(thread or 0) >> 24, thread or 0])

    def _devices(self, owners: dict[int, int], thread: int) -> list[int]:
        """Return the devices on which a host thread launches kernels; all if they are several or none."""
        device = owners.get(thread, -1)
        return [device] if device >= 0 else sorted(self.traces_by_device)


READER = Reader(
    kind=NsysFile.kind,
    title="Nsight sqlite exports",
    recognise=lambda head: head.startswith(_MAGIC),  # `load` checks whether it is an export.
    open=opens(NsysFile),
    suffixes=(".sqlite",),
    per_rank="export",
    groups=None,
)
