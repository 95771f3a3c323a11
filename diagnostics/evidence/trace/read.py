"""Reads a Kineto trace into a `Trace`: decodes it block by block and keeps columns instead of events."""

from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path

from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Problem, integer
from diagnostics.evidence.trace import model
from diagnostics.evidence.trace.scan import Scan

_TEXT = patterns_beside(__file__)
"""Patterns by name. The table describes what each one matches."""
_NO_ARGS = model.Args()
_CLOSE_US = 100  # Accuracy of the end of a stretch of activity: a fifth of the time that ends one.
_LAST_NS = 1 << 62
"""Maximum of times and numbers, which fit 64-bit columns; anything larger counts as damaged."""

_Handler = tuple[Callable[[model.Event, int], None], int]
"""The handler of an event, and the index of the event's name."""
_Handlers = dict[str, _Handler | None]


def read(path: Path, file: str, rank: int | None, limits: Limits) -> model.Trace:
    """Read the trace at `path`; OSError if it cannot be read, ValueError if it is no trace or has no usable event."""
    builder = _Builder(model.Trace(file=file))
    builder.run(Scan(path, limits, model.Event))
    if not builder.trace.device and builder.skipped_ops:
        builder = _Builder(model.Trace(file=file), all_ops=True)
        builder.run(Scan(path, limits, model.Event))
    trace = builder.finish()
    if trace.rank is None:
        named = _TEXT["worker"].search(path.name) or _TEXT["worker"].search(path.parent.name)
        trace.rank = rank if rank is not None else int(named.group(1)) if named else None
    if not (trace.device or trace.ops or trace.marks):
        raise ValueError(trace.problems[0].what if trace.problems else "it holds no events of a profiler")
    return trace


class _Builder:
    """Fills the columns of a trace. A handler changes them after all that may fail, so they stay equally long."""

    def __init__(self, trace: model.Trace, all_ops: bool | None = None) -> None:
        self.trace = trace
        self.all_ops = all_ops
        """Whether to keep every CPU operation; None = until the first event on a device."""
        self.skipped_ops = 0
        """Number of names of operations that were not kept."""
        self._names = model.Names(trace.names)
        self._lanes = model.Indices(trace.lanes)
        self._launched = array("q")
        """Correlation of each launch."""
        self._launches = model.Spans()
        self._correlation = array("q")
        self._recent_activity: tuple[int | str | None, int | str | None, float, float] = (None, None, 0.0, -1.0)
        """Process, thread, and the times (us) between which its activity is known."""

    def run(self, scan: Scan[model.Event]) -> None:
        """Read all events; raises the errors of `Scan.batches`."""
        trace = self.trace
        tables: dict[str, _Handlers | None] = {}
        for batch in scan.batches():
            if self.all_ops is None and scan.header.get("deviceProperties"):
                self.all_ops = False
            for event in batch:
                try:
                    table = tables[event.cat]
                except KeyError:
                    table = tables[event.cat] = {} if model.KINDS.get(event.cat.lower()) else None
                if table is None:
                    continue
                try:
                    taker = table[event.name]
                except KeyError:
                    taker = self._handler(event, table)
                if taker is not None and event.ph == "X":
                    try:
                        taker[0](event, taker[1])
                    except (OverflowError, ValueError):  # An impossible number.
                        scan.damaged += 1
            if len(trace.device) >= scan.limits.spans or len(trace.ops) >= 2 * scan.limits.spans:
                self._problem("first_events", count=len(trace.device))
                break
        if scan.problem:
            trace.is_cut = True
            self._problem(scan.problem.about, **scan.problem.figures)
        if scan.damaged:
            about = "deep_events" if scan.deep else "damaged_events"
            self._problem(about, count=scan.damaged, deep=scan.deep, depth=scan.limits.depth)
        self._header(scan)
        trace.on_accelerator |= any(map(_TEXT["accelerator"].search, tables))
        trace.own_kinds = any(map(_TEXT["own_kinds"].search, tables))

    def _problem(self, about: str, **figures: object) -> None:
        self.trace.problems.append(Problem("trace", self.trace.file, about, figures=figures))

    def _handler(self, event: model.Event, table: _Handlers) -> _Handler | None:
        """Return the handler for an event of this category and name, and remember it."""
        kind, name = model.KINDS[event.cat.lower()], event.name
        handler: Callable[[model.Event, int], None] | None
        if kind == "overhead":
            name = f"overhead: {name}"  # No annotation is called so.
            handler = self._mark if model.host_work(name) else None
        elif kind in ("op", "runtime", "function") and (
            model.host_work(name) or (kind == "op" and _TEXT["annotation"].search(name))
        ):
            handler = self._mark
        elif kind == "function":
            handler = self._function
        elif kind == "kernel" and _TEXT["event"].search(name):
            handler = None
        elif kind == "runtime":
            is_launch = _TEXT["launch"].search(name)
            handler = self._wait if _TEXT["wait"].search(name) else self._launch if is_launch else self._active
        elif kind == "op" and not _TEXT["telling"].search(name):
            if self.all_ops is not False:
                return self._op, self._names[name]  # Not remembered, as it changes with the first event on a device.
            self.skipped_ops += 1
            handler = self._active
        else:
            own: dict[str, Callable[[model.Event, int], None]] = {"op": self._op, "mark": self._mark}
            is_memory = kind == "memory" or _TEXT["transfer"].search(name)
            handler = own.get(kind) or partial(self._kernel, memory=int(bool(is_memory)))
        # Most functions are short, and their names are too many to be kept.
        taker = None if handler is None else (handler, -1 if handler == self._function else self._names[name])
        if len(table) < model.MAX_NAMES:
            table[name] = taker
        return taker

    def finish(self) -> model.Trace:
        """Link device work to its launch, set the first and the last time, and return the trace."""
        trace = self.trace
        own, launches = self._launches, model.places(self._launched, self._correlation)
        trace.launch = array("q", (own.start[i] if i >= 0 else -1 for i in launches))
        trace.launcher = array("i", (own.lane[i] if i >= 0 else -1 for i in launches))
        trace.returned = array("q", (own.end[i] if i >= 0 else -1 for i in launches))
        all_spans = [spans for spans in (trace.device, trace.ops, trace.marks) if len(spans)]
        trace.first_ns = min((min(spans.start) for spans in all_spans), default=0)
        trace.last_ns = max((max(spans.end) for spans in all_spans), default=0)
        return trace

    def _header(self, scan: Scan[model.Event]) -> None:
        trace, header, info = self.trace, scan.header, scan.info
        trace.rank, trace.world_size = scan.rank, scan.world_size
        base = header.get("baseTimeNanoseconds")
        trace.base_ns = base if isinstance(base, int) else 0
        trace.backend = str(info.get("backend", ""))
        listed = trace.backend == "nccl" or (bool(header.get("deviceProperties")) and trace.backend != "gloo")
        trace.on_accelerator = listed or any(map(_TEXT["on_accelerator"].search, trace.names))
        keys = ("with_stack", "profile_memory", "record_shapes")
        trace.settings = {key: header[key] for key in keys if key in header}
        groups = info.get("pg_config")
        for group in groups if isinstance(groups, list) else ():
            if isinstance(group, dict) and "pg_name" in group:
                ranks, declared, name = group.get("ranks"), group.get("pg_size"), str(group["pg_name"])
                members = tuple(r for r in ranks if integer(r, 0) is not None) if isinstance(ranks, list) else ()
                size = declared if isinstance(declared, int) else len(members)
                trace.groups[name] = model.GroupInfo(name, str(group.get("pg_desc", "")), members, size)

    def _times(self, event: model.Event) -> tuple[int, int]:
        ts, dur = event.ts, event.dur
        if type(ts) is int and type(dur) is int:
            start = ts * 1000
            end = start + dur * 1000 if dur > 0 else start
        else:
            start, end = round(ts * 1000), round((ts + max(dur, 0)) * 1000)
            if start % 1000:
                self.trace.fractional = True
        if start < -_LAST_NS or end > _LAST_NS:
            raise OverflowError
        return start, end

    def _kernel(self, event: model.Event, name: int, memory: int = 0) -> None:
        trace, args = self.trace, event.args or _NO_ARGS
        start, end = self._times(event)
        correlation = _correlation(args)
        stream = event.tid if args.stream is None else args.stream
        device = event.pid if args.device is None else args.device
        if args.op is not None or args.group is not None:
            trace.messages[len(trace.device)] = self._message(args)
        if memory and args.size is not None:
            trace.copied_bytes[len(trace.device)] = int(float(args.size))
        trace.device.add(start, end, name, self._lanes[device, stream])
        trace.is_memory.append(memory)
        self._correlation.append(correlation)
        if self.all_ops is None:
            self.all_ops = False

    def _launch(self, event: model.Event, name: int) -> None:
        args = event.args
        if args is not None and args.correlation is not None:
            times, correlation = self._times(event), _correlation(args)
            self._launched.append(correlation)
            self._launches.add(*times, name, self._lanes[event.pid, event.tid])
        self._active(event, name, keep=False)

    def _wait(self, event: model.Event, name: int) -> None:
        self.trace.syncs.add(*self._times(event), name, self._lanes[event.pid, event.tid])
        self._launch(event, name)

    def _active(self, event: model.Event, name: int, keep: bool = True) -> None:
        """Note that the host does something; only what takes as long as a pause is kept, as it may be the reason."""
        pid, tid, first, last = self._recent_activity
        if first <= event.ts and event.ts + event.dur <= last and event.tid == tid and event.pid == pid:
            return  # As nearly all: half of the events of a trace are short operations.
        start, end = self._times(event)
        lane = self._lanes[event.pid, event.tid]
        self.trace.add_activity(start, end, lane)
        if keep and end - start >= model.PAUSE_NS:
            self.trace.ops.add(start, end, name, lane)
        self._recent_activity = event.pid, event.tid, self.trace.activity.start[-1] / 1000, end / 1000 + _CLOSE_US

    def _op(self, event: model.Event, name: int) -> None:
        ops = self.trace.ops
        start, end = self._times(event)
        if event.args is not None and (event.args.op is not None or event.name == "record_param_comms"):
            self.trace.op_messages[len(ops)] = self._message(event.args)
        ops.add(start, end, name, self._lanes[event.pid, event.tid])
        self._active(event, name, keep=False)

    def _mark(self, event: model.Event, name: int) -> None:
        trace, args = self.trace, event.args
        start, end = self._times(event)
        if _TEXT["comms"].match(event.name):
            linked = args is not None and args.op is not None
            message = self._message(args) if args is not None and linked else model.message_of_shapes(event.name, args)
            trace.mark_messages[len(trace.marks)] = message
        trace.marks.add(start, end, name, self._lanes[event.pid, event.tid])

    def _function(self, event: model.Event, _: int) -> None:
        if event.dur >= model.QUIET_NS / 1000:
            lane = self._lanes[event.pid, event.tid]
            self.trace.functions.add(*self._times(event), self._names[event.name], lane)

    def _message(self, args: model.Args) -> model.Message:
        message = model.message_of_args(args)
        groups = self.trace.groups
        if message.group and message.group not in groups:
            ranks = model.ranks_of(args.ranks or "")
            groups[message.group] = model.GroupInfo(
                message.group, args.desc or "", ranks, message.group_size or len(ranks)
            )
        return message


def _correlation(args: model.Args) -> int:
    number = args.correlation
    if number is None:
        return -1
    if not -_LAST_NS < number < _LAST_NS:
        raise OverflowError
    return number
