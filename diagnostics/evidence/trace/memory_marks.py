"""Reads what a profiler trace holds about memory: allocations, collectives, and spans of steps, regions and units."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from diagnostics.evidence.calls import operation
from diagnostics.evidence.limits import Limits, blocks
from diagnostics.evidence.model import Frame, size_of
from diagnostics.evidence.trace.model import DTYPE_BYTES, elements
from diagnostics.evidence.trace.scan import Scan

MAX_SPANS = 400_000
MAX_EVENTS = 2_000_000
MAX_CALLS = 200_000
STEP = "ProfilerStep#"
FUNCTION = "python_function"
BACKWARD = "autograd::engine::evaluate_function"
_MEMORY = "[memory]"
_PAUSE_US = 1000  # Autograd's spans that are less far apart belong to one pass; there is more work between passes.
_LAST_US = 1e18
"""Maximum timestamp; a later one counts as damaged."""
_GRADIENT = "torch::autograd::AccumulateGrad"
_OPS = ("c10d::", "_c10d_functional::", "record_param_comms")
_WORTH = re.compile(rb"\[memory\]|_allgather|all_gather|allgather_|FSDP::")
_FUNCTIONAL = re.compile(r"^_c10d_functional::(all_gather_into_tensor|reduce_scatter_tensor|all_reduce)")


class Span(Struct, frozen=True):
    """A named interval of a host thread."""

    name: str
    start_us: float
    end_us: float
    thread: int


class MemoryEvent(msgspec.Struct, gc=False):
    """One allocation (`bytes` > 0) or release (< 0), as recorded with `profile_memory=True`."""

    bytes: int = msgspec.field(name="Bytes")
    address: int = msgspec.field(name="Addr", default=0)
    total_allocated_bytes: int = msgspec.field(name="Total Allocated", default=0)
    """Bytes allocated on the device after this event."""
    total_reserved_bytes: int = msgspec.field(name="Total Reserved", default=0)
    """Bytes reserved by CUDA's caching allocator; 0 on CPU."""
    device_type: int = msgspec.field(name="Device Type", default=0)
    """torch's `DeviceType`: 0 = CPU, 1 = CUDA."""
    device_id: int = msgspec.field(name="Device Id", default=-1)
    """Device index; -1 for CPU."""
    ts_us: float = 0.0
    thread: int = 0
    """Number of the host thread."""


class TraceCall(Struct, frozen=True):
    """One collective as the host issued it."""

    op: str
    """`all_gather`, `reduce_scatter`, `all_reduce`, ..."""
    in_bytes: int
    """Size of this rank's input; for rooted operations, of what it sends or receives."""
    out_bytes: int | None
    """Size of this rank's output; None if not recorded (a list of tensors)."""
    ranks: int | None
    """Number of ranks in the group; None if not recorded."""
    start_us: float
    thread: int
    is_list: bool
    """Whether the output is a list of tensors."""
    functional: bool = False
    """Whether it is a functional collective, as DTensor uses them."""


class TraceMarks(Struct):
    """The parts of a trace that concern memory. Times are in us of the trace's own clock."""

    rank: int | None = None
    world_size: int | None = None
    held_bytes: int | None = None
    """Bytes of the tensors of a CPU that were alive before the window, as its recorder counted them."""
    spans: list[Span] = field(default_factory=list)
    """Annotations (steps, regions, units, optimizer) in ascending order of start."""
    backward: list[Span] = field(default_factory=list)
    """Intervals in which autograd ran; those less than 1 ms apart are merged."""
    calls: list[TraceCall] = field(default_factory=list)
    """Collectives in ascending order of start."""
    backend: list[Span] = field(default_factory=list)
    """Collectives on any thread, in ascending order of start; allocations within them belong to the backend."""
    gradient_bytes: set[int] = field(default_factory=set)
    """Sizes of accumulated gradients, which equal those of the parameters; requires `record_shapes=True`."""
    events: list[MemoryEvent] = field(default_factory=list)
    """The first `MAX_EVENTS` allocations and releases, in the order of the file."""
    has_functions: bool = False
    """Whether Python functions were traced (`with_stack=True`)."""

    @property
    def steps(self) -> list[tuple[int, Span]]:
        """Pairs (step number, span) of the profiled steps."""
        return [(number, span) for span in self.spans if (number := step_number(span.name)) is not None]


def step_number(name: str) -> int | None:
    """Return the 12 of `ProfilerStep#12`, or None for any other name."""
    text = name.removeprefix(STEP)
    return int(text) if text != name and text.isdecimal() and len(text) < 12 else None


class HostEvent(msgspec.Struct, gc=False):
    """The fields of an event that `read_marks` uses."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: int | float = 0
    dur: int | float = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"")

    @property
    def thread(self) -> int:
        """Number of the host thread; 0 if the trace has none."""
        return self.tid if isinstance(self.tid, int) else 0


class _Args(msgspec.Struct, gc=False):
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)
    concrete: Any = msgspec.field(name="Concrete Inputs", default=None)
    collective: str = msgspec.field(name="Collective name", default="")
    dtype: str = ""
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)


_ARGS, _ALLOCATION = msgspec.json.Decoder(_Args), msgspec.json.Decoder(MemoryEvent)
_Decoded = TypeVar("_Decoded", _Args, MemoryEvent)


def is_worth_reading(path: Path, limits: Limits) -> bool:
    """Whether a trace contains allocations or gathers, by searching its bytes without decoding; raises OSError."""
    tail = b""
    try:
        for block in blocks(path, limits, text=True):
            if _WORTH.search(tail + block):
                return True
            tail = block[-16:]
    except ValueError:
        pass  # Damage is reported by the reader of the events.
    return False


def read_marks(path: Path, limits: Limits) -> TraceMarks:
    """Read a trace in one pass, up to a damage if any; OSError if it cannot be read, ValueError if it is no trace."""
    marks = TraceMarks()
    scan = Scan(path, limits, HostEvent)
    calls: dict[str, list[TraceCall]] = {"linked": [], "op": []}
    backward: list[Span] = []
    for batch in scan.batches():
        for event in batch:
            cat, name = event.cat, event.name
            if name == _MEMORY:
                is_wanted = len(marks.events) < MAX_EVENTS and abs(event.ts) < _LAST_US
                if is_wanted and (decoded := _decoded(_ALLOCATION, event)) is not None:
                    decoded.ts_us, decoded.thread = event.ts, event.thread
                    marks.events.append(decoded)
            elif event.ph != "X":
                continue
            elif cat in ("user_annotation", "cpu_op", "Operator"):
                if name.startswith(BACKWARD):
                    _append(backward, event, BACKWARD)
                elif name == _GRADIENT:
                    args = _decoded(_ARGS, event) if len(marks.gradient_bytes) < MAX_SPANS else None
                    if args and isinstance(args.dims, list) and isinstance(args.types, list):
                        marks.gradient_bytes.add(_bytes(args.dims, args.types, 0))
                elif name.startswith(_OPS):
                    linked = name == "record_param_comms"
                    of_form, reads = calls["linked" if linked else "op"], _linked if linked else _operator
                    if len(of_form) < MAX_CALLS and (args := _decoded(_ARGS, event)) is not None:
                        of_form += filter(None, [reads(event, args)])
                    if name.startswith("c10d::"):
                        _append(marks.backend, event, name)
                elif name.startswith("gloo:"):
                    _append(marks.backend, event, name)
                elif cat == "user_annotation" and not name.startswith(("gloo:", "nccl:")):
                    _append(marks.spans, event, name)
            elif cat == FUNCTION:
                marks.has_functions = True
    marks.rank, marks.world_size = scan.rank, scan.world_size
    marks.held_bytes = scan.held_bytes
    for spans in (marks.spans, marks.backend):
        spans.sort(key=lambda span: (span.start_us, -span.end_us))
    marks.backward = _merged(backward)
    marks.calls = sorted(calls["linked"] or calls["op"], key=lambda call: call.start_us)
    return marks


def _decoded(decoder: msgspec.json.Decoder[_Decoded], event: HostEvent) -> _Decoded | None:
    try:
        return decoder.decode(event.args)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _append(spans: list[Span], event: HostEvent, name: str) -> None:
    if len(spans) < MAX_SPANS:
        spans.append(Span(name, event.ts, event.ts + max(0, event.dur), event.thread))


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Merge spans of autograd that belong to one pass, less than `_PAUSE_US` apart."""
    result: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start_us):
        last = result[-1] if result else None
        if last is not None and span.start_us - last.end_us < _PAUSE_US:
            result[-1] = Span(last.name, last.start_us, max(last.end_us, span.end_us), last.thread)
        else:
            result.append(span)
    return result


def _linked(event: HostEvent, args: _Args) -> TraceCall | None:
    """Return a collective from `record_param_comms`, which has its sizes in torch 2.2 and later; None without them."""
    ins, outs, item = size_of(args.in_elements), size_of(args.out_elements), DTYPE_BYTES.get(args.dtype.lower())
    if not args.collective or ins is None or outs is None or item is None:
        return None
    ranks, is_list = size_of(args.group_size) or None, args.collective in ("allgather", "all_gather")
    op, out_bytes = operation(args.collective), outs * item or None
    return TraceCall(op, ins * item, out_bytes, ranks, event.ts, event.thread, is_list)


def _operator(event: HostEvent, args: _Args) -> TraceCall | None:
    """Return a collective from the shapes of an operator's inputs (`record_shapes=True`); None without them."""
    dims, types = args.dims, args.types
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    functional = _FUNCTIONAL.match(event.name)
    if functional:
        size = _bytes(dims, types, 0)
        ranks = size_of(_at(args.concrete, 1)) if functional[1] != "all_reduce" else None
        word = operation(functional[1])
        out = size * ranks if word == "all_gather" and ranks else size if word == "all_reduce" else None
        return TraceCall(word, size, out, ranks, event.ts, event.thread, False, True) if size else None
    name = event.name.removeprefix("c10d::").strip("_")
    if name in ("allgather_base", "reduce_scatter_base"):
        out, size = _bytes(dims, types, 0), _bytes(dims, types, 1)
        ranks = max(out, size) // min(out, size) if min(out, size) else None
        op_name = "all_gather" if name == "allgather_base" else "reduce_scatter"
        return TraceCall(op_name, size, out or None, ranks, event.ts, event.thread, False)
    index = 1 if name in ("allgather", "gather", "reduce_scatter") else 0
    size = _bytes(dims, types, index) or _bytes(dims, types, 0)
    is_list = name == "allgather"
    return TraceCall(operation(name), size, None, None, event.ts, event.thread, is_list) if size else None


def _bytes(dims: list[Any], types: list[Any], index: int) -> int:
    """Return the size of an argument in bytes; 0 if unknown. Lists of tensors, which have no type, count as float32."""
    shape, kind = _at(dims, index), _at(types, index)
    if not isinstance(shape, list) or not isinstance(kind, str):
        return 0
    if kind == "TensorList":
        return sum(map(elements, shape)) * 4
    item = DTYPE_BYTES.get(kind.lower())
    return elements(shape) * item if item else 0


def _at(values: Any, index: int) -> Any:
    return values[index] if isinstance(values, list) and len(values) > index else None


_NAME = re.compile(r"(.{1,1024}\.py)\((\d{1,9})\): (.{1,256})", re.DOTALL)


def stacks_at(path: Path, limits: Limits, moments: Sequence[tuple[float, int]]) -> list[list[Frame]]:
    """Return the Python functions that ran at each moment (us of the trace's clock, host thread), innermost first.

    OSError if the file cannot be read, ValueError if it is not a trace.
    """
    of_thread: dict[int | str, list[tuple[float, int]]] = {}
    for at, (time_us, thread) in enumerate(moments):
        of_thread.setdefault(thread, []).append((time_us, at))
    for times in of_thread.values():
        times.sort()
    names_at: list[list[tuple[float, str]]] = [[] for _ in moments]
    for batch in Scan(path, limits, HostEvent).batches():
        for event in batch:
            if event.cat != FUNCTION or (waiting := of_thread.get(event.tid)) is None:
                continue
            until = event.ts + event.dur
            for time_us, at in islice(waiting, bisect_left(waiting, (event.ts, -1)), None):
                if time_us > until:
                    break
                names_at[at].append((event.ts, event.name))
    return [
        [Frame(m[1], int(m[2]), m[3]) for _, name in sorted(names, reverse=True) if (m := _NAME.fullmatch(name))]
        for names in names_at
    ]
