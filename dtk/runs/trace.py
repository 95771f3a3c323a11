"""One Chrome trace of all ranks of a run, for Perfetto, by rank 0's clock. Streamed, as files may be large."""

import gzip
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from diagnostics.contract.artifacts import RunPaths, read_status
from diagnostics.diagnose import Options, diagnose
from diagnostics.evidence.dump_agreement import offset
from diagnostics.evidence.limits import Limits, lines_of, whole
from diagnostics.evidence.ring.format import RingDump, parse
from diagnostics.evidence.trace.scan import Scan
from diagnostics.report.files import replacing_typed
from diagnostics.runs.records import as_mapping, objects
from dtk.errors import DtkError, refused

Event = dict[str, Any]
Position = tuple[str, int]  # Key of a group, and position in it: equal on all ranks that join a collective.
PIDS = 1000  # Number of process ids per rank in the trace: the first for the rank, the others for its profiler.
_RANK = re.compile(r"(?:rank|node)_(\d{1,7})\.(?:jsonl|json\.gz|ring)")


@dataclass(slots=True)
class Merge:
    """Merge of all records of a run into one file."""

    folder: Path
    limits: Limits = field(default_factory=Limits)
    problems: list[str] = field(default_factory=list)
    """Files that cannot be read, or only partly."""
    events: int = 0
    ranks: set[int] = field(default_factory=set)
    flows: dict[Position, tuple[float, int, float, int]] = field(default_factory=dict)
    """Collective -> time and rank of the first arrival, then time and rank of the last."""
    numbers: dict[Position, int] = field(default_factory=dict)
    """Collective -> id of its flow, as Perfetto drops a flow whose id is not a number."""
    culprits: dict[int, str] = field(default_factory=dict)
    """Rank -> cause."""
    guilty: set[tuple[int, str, int | None]] = field(default_factory=set)
    """Rank, group and position of the calls that a root cause names."""
    shifts_s: dict[int, float] = field(default_factory=dict)
    """Rank -> offset of its clock from the first rank's."""
    origin_s: float = 0.0
    end_s: float = 0.0

    def write(self, file: Path) -> None:
        """Write a `.json` or `.json.gz`; DtkError if the run has nothing with times, or the file cannot be written."""
        with suppress(OSError, ValueError, TypeError):
            status = read_status(RunPaths(self.folder).status)
            times = (status.started, status.updated)
            self.origin_s, self.end_s = (datetime.fromisoformat(time).timestamp() for time in times)
        self._align()
        opened = gzip.open if file.suffix == ".gz" else open
        with refused(f"cannot write {file}", "choose another --out"), replacing_typed(file) as temporary:
            with opened(temporary, "wt", encoding="utf-8") as output:
                output.write('{"displayTimeUnit": "ms", "traceEvents": [')
                for event in self._all():
                    output.write((",\n" if self.events else "\n") + msgspec.json.encode(event).decode())
                    self.events += 1
                output.write("\n]}\n")
            if not self.ranks:
                raise DtkError(f"{self.folder} has nothing to draw", fix="record it: record=light, or full for regions")

    def _all(self) -> Iterator[Event]:
        with suppress(Exception):  # A run that cannot be diagnosed is still drawn.
            for cause in diagnose(self.folder, Options(limits=self.limits)).root_causes:
                self.culprits |= dict.fromkeys(cause.ranks, cause.cause)
                if cause.group is not None:
                    self.guilty |= {(rank, cause.group.name, cause.position) for rank in cause.ranks}
        for rank, ring in self._rings():
            yield from self._calls(rank, ring)
        counters = {"memory": self._counters, "telemetry": self._counters}
        for name, read in {"events": self._regions, "traces": self._profiled, **counters}.items():
            for rank, path in self._files(name):
                try:
                    yield from read(rank, path)
                except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:  # Damage.
                    self.problems.append(f"{name}/{path.name}: {type(error).__name__}: {error}")
        for rank in sorted(self.ranks):
            name = f"rank {rank}" + (f" - AT FAULT: {self.culprits[rank]}" if rank in self.culprits else "")
            for kind, about in (("name", {"name": name}), ("sort_index", {"sort_index": rank * PIDS})):
                yield {"ph": "M", "pid": rank * PIDS, "name": f"process_{kind}", "args": about}
            for thread, title in enumerate(("regions", "collectives")):
                yield {"ph": "M", "pid": rank * PIDS, "tid": thread, "name": "thread_name", "args": {"name": title}}

    def _align(self) -> None:
        """Compare all clocks with the first rank's, and record the first and last arrival at each collective."""
        first: dict[str, dict[int, float]] = {}
        for rank, ring in self._rings():
            times: dict[str, dict[int, float]] = {}
            for record in ring.records:
                if not record.is_p2p and record.root is None and not record.asynchronous:
                    times.setdefault(record.group.key, {})[record.seq] = record.time_s
            first = first or times
            bounds = [bound for key in times if (bound := offset(first.get(key, {}), times[key])) is not None]
            if bounds and (best := min(bounds, key=lambda bound: bound.width_s)).apart_s():
                self.shifts_s[rank] = best.value_s
            for record in ring.records:
                key, time_s = (record.group.key, record.seq), record.time_s - self.shifts_s.get(rank, 0.0)
                self.end_s = max(self.end_s, record.time_s)
                early_s, earliest, late_s, latest = self.flows.get(key, (time_s, rank, time_s, rank))
                early_s, earliest = min((early_s, earliest), (time_s, rank))
                late_s, latest = max((late_s, latest), (time_s, rank))
                if not record.is_p2p:
                    self.flows[key] = early_s, earliest, late_s, latest

    def _calls(self, rank: int, ring: RingDump) -> Iterator[Event]:
        self.ranks.add(rank)
        for record in ring.records:
            start = self._us(rank, record.time_s)
            place: Event = {"pid": rank * PIDS, "tid": 1, "ts": start}
            ended_s = self.end_s if record.state == "started" else record.ended_s
            length_us = max(1.0, self._us(rank, ended_s) - start)
            about = {"call": f"{record.file}:{record.line}", "group": record.group.desc, "position": record.seq}
            about |= {"dtype": record.dtype, "shapes": record.input_sizes, "step": record.step, "state": record.state}
            yield {**place, "ph": "X", "name": record.op, "dur": length_us, "args": about}
            named = any(place[0] == rank and place[2] is not None for place in self.guilty)
            stuck = record.state == "started" and rank in self.culprits and not named
            if stuck or (rank, record.group.name, record.seq) in self.guilty:
                yield {**place, "ph": "i", "s": "p", "name": f"AT FAULT: {self.culprits[rank]}"}
            _, earliest, _, latest = self.flows.get((record.group.key, record.seq), (0.0, rank, 0.0, rank))
            if not record.is_p2p and earliest != latest:
                phase = "s" if rank == earliest else "f" if rank == latest else "t"
                number = self.numbers.setdefault((record.group.key, record.seq), len(self.numbers))
                flow = {"ph": phase, "id": number, "bp": "e"}
                yield {**place, **flow, "cat": "collective", "name": "collective"}

    def _regions(self, rank: int, path: Path) -> Iterator[Event]:
        for record in objects(lines_of(path, self.limits)):
            place = {"pid": rank * PIDS, "tid": 0, "name": str(record["name"]), "ts": self._us(rank, record["time_s"])}
            about = {key: value for key, value in record.items() if key not in ("kind", "name", "time_s")}
            if record.get("kind") == "span":
                yield {**place, "ph": "X", "dur": float(record["duration_ms"]) * 1e3, "args": about}
            else:
                yield {**place, "ph": "i", "s": "t", "args": about}
            self.ranks.add(rank)

    def _counters(self, rank: int, path: Path) -> Iterator[Event]:
        """Yield the memory of a rank, or what NVML and the host said of a node, on the rank of that number."""
        for record in objects(lines_of(path, self.limits)):
            gpus = record.get("gpu") or []
            sources = {"host": record.get("host") or {}, **{f"GPU {i}": gpu for i, gpu in enumerate(gpus)}}
            place = {"pid": rank * PIDS, "ts": self._us(rank, record["time_s"]), "ph": "C"}
            for title, values in (sources if "kind" in record else {"memory": record}).items():
                figures = {
                    name: value
                    for name, value in as_mapping(values).items()  # The first record names the host.
                    if isinstance(value, int | float) and name not in ("time_s", "step")
                }
                yield from [{**place, "name": title, "args": figures}] if figures else []

    def _profiled(self, rank: int, path: Path) -> Iterator[Event]:
        """Yield what the profiler recorded, on tracks of this rank and in its time."""
        scan = Scan(path, self.limits, dict[str, Any])
        pids: dict[Any, int] = {}
        for batch in scan.batches():
            for event in batch:
                own = event.get("pid")
                if own not in pids:
                    pids[own] = rank * PIDS + min(len(pids) + 1, PIDS - 1)
                    if isinstance(own, str):  # Named by its id alone.
                        title = {"name": f"rank {rank} profiler: {own}"}
                        yield {"ph": "M", "pid": pids[own], "name": "process_name", "args": title}
                event["pid"] = pids[own]
                if "ts" in event:
                    event["ts"] = self._us(rank, scan.header.get("baseTimeNanoseconds", 0) / 1e9) + float(event["ts"])
                if "id" in event:
                    number = event["id"] if isinstance(event["id"], int) else crc32(str(event["id"]).encode())
                    event["id"] = (rank + 1 << 32) + number % (1 << 32)  # Below 2^53, and no collective's.
                if event.get("name") == "process_name":
                    event["args"] = {"name": f"rank {rank} profiler: {(event.get('args') or {}).get('name', '')}"}
                elif event.get("name") == "process_sort_index":
                    event["args"] = {"sort_index": event["pid"]}
                yield event
        if scan.problem:
            self.problems.append(f"{path.name}: {scan.problem.what}")

    def _us(self, rank: int, time_s: float) -> float:
        """Return microseconds since the start of the run, by the first rank's clock."""
        return (float(time_s) - self.shifts_s.get(rank, 0.0) - self.origin_s) * 1e6

    def _files(self, name: str) -> list[tuple[int, Path]]:
        files = []
        with suppress(OSError):
            for path in (self.folder / name).iterdir():
                if (match := _RANK.fullmatch(path.name)) and path.is_file() and not path.is_symlink():
                    files.append((int(match[1]), path))
        return sorted(files)[: self.limits.files]

    def _rings(self) -> Iterator[tuple[int, RingDump]]:
        for rank, path in self._files("flight"):
            try:
                yield rank, parse(whole(path, self.limits))
            except (OSError, ValueError) as error:
                self.problems.append(f"{path.name}: {error}")
