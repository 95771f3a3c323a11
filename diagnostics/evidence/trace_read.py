"""Reads a Kineto trace into `Trace`: decodes block by block, keeps columns, drops the events.

Knows the versions' differences; joins device work to its launch by the correlation id.
"""

import re
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.trace import GroupInfo, Trace
from diagnostics.evidence.trace_events import (
    KINDS,
    Args,
    Event,
    Lane,
    Message,
    message_of_args,
    message_of_shapes,
    ranks_of,
)
from diagnostics.evidence.trace_scan import Scan

_MAX_NAMES = 200_000
_SPARSE = 16
"""Numbers for each that occurs, up to which a table is smaller than a dict."""
_LAUNCH = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
_WAIT = re.compile(r"synchronize$|^(?:cuda|hip)Memcpy$", re.IGNORECASE)
_TELLING = re.compile(
    r"^(?:c10d::|record_param_comms|autograd::engine::evaluate_function|torch[.:]+distributed|aten::(?:item|nonzero|"
    r"_local_scalar_dense|is_nonzero|equal|masked_select|unique\w*)$)|search_unused"
)
_COMMS = re.compile(r"^(?:nccl|gloo|mpi|ucc|rccl|xccl|hccl):")
_WORKER = re.compile(r"(?:^|[^a-z])(?:worker|rank)[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_CPU_BACKENDS = re.compile(r"gloo|mpi")

_Handlers = dict[str, Callable[[Event], None] | None]


def read(path: Path, file: str, rank: int | None, limits: Limits) -> Trace:
    """The trace at `path`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no trace, or nothing in it could be used.
    """
    builder = _Builder(Trace(file=file))
    builder.run(Scan(path, limits, Event))
    if not builder.trace.device and builder.skipped_ops:
        builder = _Builder(Trace(file=file), all_ops=True)
        builder.run(Scan(path, limits, Event))
    trace = builder.finish()
    if trace.rank is None:
        named = _WORKER.search(path.name)
        trace.rank = rank if rank is not None else int(named.group(1)) if named else None
    if not (trace.device or trace.ops or trace.marks):
        raise ValueError(trace.problems[0] if trace.problems else "it holds no events of a profiler")
    return trace


class _Builder:
    """Fills the columns of one trace."""

    def __init__(self, trace: Trace, all_ops: bool | None = None) -> None:
        self.trace = trace
        self.all_ops = all_ops
        """Keep every CPU operation; None = until something ran on a device."""
        self.skipped_ops = 0
        """Names of operations that were not kept."""
        self._names: dict[str, int] = {}
        self._lanes: dict[tuple[int | str | None, int | str | None], int] = {}
        self._launched = array("q")
        """Correlation of each launch."""
        self._launch_start = array("q")
        self._launch_lane = array("i")
        self._correlation = array("q")

    def run(self, scan: Scan[Event]) -> None:
        """Read all events.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no trace.
        """
        trace = self.trace
        tables: dict[str, _Handlers | None] = {}
        for batch in scan.batches():
            if self.all_ops is None and scan.header.get("deviceProperties"):
                self.all_ops = False
            for event in batch:
                try:
                    table = tables[event.cat]
                except KeyError:
                    table = tables[event.cat] = self._handlers(event.cat)
                if table is None:
                    continue
                try:
                    handler = table[event.name]
                except KeyError:
                    handler = self._handler(event, table)
                if handler is not None:
                    try:
                        handler(event)
                    except (OverflowError, ValueError):  # a number that no clock gives
                        scan.damaged += 1
            if len(trace.device) >= scan.limits.spans or len(trace.ops) >= 2 * scan.limits.spans:
                most = f"only its first {len(trace.device):,} device events are used; raise it with --limit-scale"
                trace.problems.append(most)
                break
        if scan.problem:
            trace.problems.append(scan.problem)
        if scan.damaged:
            deep = f" ({scan.deep:,} nested over {scan.limits.depth} levels)" if scan.deep else ""
            trace.problems.append(f"{scan.damaged:,} events could not be decoded{deep}")
        self._header(scan.header)

    def _handlers(self, cat: str) -> _Handlers | None:
        """By name, what takes an event of this category; None when nothing ever does."""
        return {} if KINDS.get(cat.lower()) else None

    def _handler(self, event: Event, table: _Handlers) -> Callable[[Event], None] | None:
        """What takes an event of that category and name; remembered."""
        kind, name = KINDS[event.cat.lower()], event.name
        handler: Callable[[Event], None] | None
        if kind == "runtime":
            handler = self._wait if _WAIT.search(name) else self._launch if _LAUNCH.search(name) else None
        elif kind == "op" and not _TELLING.search(name):
            if self.all_ops is not False:
                return self._op  # not remembered: it ends with the first work on a device
            self.skipped_ops += 1
            handler = None
        else:
            handler = {"kernel": self._kernel, "memory": self._memory, "op": self._op, "mark": self._mark}[kind]
        if len(table) < _MAX_NAMES:
            table[name] = handler
        return handler

    def finish(self) -> Trace:
        """Link device work to its launch, and settle the window."""
        trace = self.trace
        start, lane = self._launch_start, self._launch_lane
        found = _places(self._launched, self._correlation)
        trace.launch = array("q", (start[i] if i >= 0 else -1 for i in found))
        trace.launcher = array("i", (lane[i] if i >= 0 else -1 for i in found))
        all_spans = [spans for spans in (trace.device, trace.ops, trace.marks) if len(spans)]
        trace.first_ns = min((min(spans.start) for spans in all_spans), default=0)
        trace.last_ns = max((max(spans.end) for spans in all_spans), default=0)
        return trace

    def _header(self, header: dict[str, Any]) -> None:
        trace = self.trace
        info = header.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        own = header.get("dtk")
        rank = info.get("rank", own.get("rank") if isinstance(own, dict) else None)
        world = info.get("world_size")
        base = header.get("baseTimeNanoseconds")
        trace.rank = rank if _number(rank) else None
        trace.world_size = world if _number(world) else None
        trace.base_ns = base if isinstance(base, int) else 0
        trace.backend = str(info.get("backend", ""))
        trace.settings = {
            key: header[key] for key in ("with_stack", "profile_memory", "record_shapes") if key in header
        }
        groups = info.get("pg_config")
        for one in groups if isinstance(groups, list) else ():
            if isinstance(one, dict) and "pg_name" in one:
                ranks = one.get("ranks")
                members = tuple(r for r in ranks if _number(r)) if isinstance(ranks, list) else ()
                told = one.get("pg_size")
                size = told if isinstance(told, int) else len(members)
                name = str(one["pg_name"])
                trace.groups[name] = GroupInfo(name, str(one.get("pg_desc", "")), members, size)

    def _name(self, name: str) -> int:
        try:
            return self._names[name]
        except KeyError:
            if len(self._names) >= _MAX_NAMES:
                return self._names.setdefault("(other)", len(self._names))
            self._names[name] = index = len(self._names)
            self.trace.names.append(name)
            return index

    def _lane(self, owner: int | str | None, line: int | str | None) -> int:
        key = (owner, line)
        try:
            return self._lanes[key]
        except KeyError:
            self._lanes[key] = index = len(self._lanes)
            self.trace.lanes.append(Lane(owner, line))
            return index

    def _times(self, event: Event) -> tuple[int, int]:
        ts, dur = event.ts, event.dur
        if type(ts) is int and type(dur) is int:
            start = ts * 1000
            return start, start + (dur * 1000 if dur > 0 else 0)
        start, end = round(ts * 1000), round((ts + max(dur, 0)) * 1000)
        if start % 1000:
            self.trace.fractional = True
        return start, end

    def _kernel(self, event: Event, memory: int = 0) -> None:
        if event.ph != "X":
            return
        trace, args = self.trace, event.args or Args()
        start, end = self._times(event)
        stream = event.tid if args.stream is None else args.stream
        device = event.pid if args.device is None else args.device
        if args.op is not None or args.group is not None:
            trace.messages[len(trace.device)] = self._message(args)
        trace.device.add(start, end, self._name(event.name), self._lane(device, stream))
        trace.is_memory.append(memory)
        self._correlation.append(-1 if args.correlation is None else args.correlation)
        if self.all_ops is None:
            self.all_ops = False

    def _memory(self, event: Event) -> None:
        self._kernel(event, 1)

    def _launch(self, event: Event) -> None:
        args = event.args
        if args is not None and args.correlation is not None:
            start = self._times(event)[0]
            self._launched.append(args.correlation)
            self._launch_start.append(start)
            self._launch_lane.append(self._lane(event.pid, event.tid))

    def _wait(self, event: Event) -> None:
        start, end = self._times(event)
        self.trace.syncs.add(start, end, self._name(event.name), self._lane(event.pid, event.tid))
        self._launch(event)

    def _op(self, event: Event) -> None:
        if event.ph != "X":
            return
        trace = self.trace
        if event.args is not None and (event.args.op is not None or event.name == "record_param_comms"):
            trace.op_messages[len(trace.ops)] = self._message(event.args)
        start, end = self._times(event)
        trace.ops.add(start, end, self._name(event.name), self._lane(event.pid, event.tid))

    def _mark(self, event: Event) -> None:
        if event.ph != "X":
            return
        trace, name = self.trace, event.name
        if _COMMS.match(name):
            args = event.args
            told = self._message(args) if args is not None and args.op is not None else message_of_shapes(name, args)
            trace.mark_messages[len(trace.marks)] = told
        start, end = self._times(event)
        trace.marks.add(start, end, self._name(name), self._lane(event.pid, event.tid))

    def _message(self, args: Args) -> Message:
        message = message_of_args(args)
        groups = self.trace.groups
        if message.group and message.group not in groups:
            ranks = ranks_of(args.ranks or "")
            groups[message.group] = GroupInfo(message.group, args.desc or "", ranks, message.group_size or len(ranks))
        return message


def _places(known: "array[int]", wanted: "array[int]") -> "array[int]":
    """Where each wanted number stands last among the known ones; -1 = nowhere.

    Correlation ids are counted up, so a table by number does with a few bytes each; a dict takes over a hundred.
    """
    low, high = (min(known), max(known)) if known else (0, -1)
    if high - low + 1 > _SPARSE * len(known):
        places = {number: n for n, number in enumerate(known)}
        return array("i", (places.get(number, -1) for number in wanted))
    table = array("i", (-1,)) * (high - low + 1)
    for n, number in enumerate(known):
        table[number - low] = n
    return array("i", (table[number - low] if low <= number <= high else -1 for number in wanted))


def _number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
