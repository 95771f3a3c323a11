"""A profiler trace in compact columns, records of Kineto, and the names that profilers give to what is in them."""

import re
from array import array
from functools import lru_cache
from math import prod
from typing import Literal, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct, field

from diagnostics.contract.files import patterns_beside, table_beside
from diagnostics.evidence.calls import operation
from diagnostics.evidence.model import Problem


class Args(msgspec.Struct, gc=False):
    """Arguments of a device event, runtime call or collective. They decode fastest in Kineto's order."""

    device: int | str | None = None
    stream: int | str | None = None
    correlation: int | None = None
    size: int | float | str | None = msgspec.field(name="bytes", default=None)
    """A string in traces of ROCm's profiler."""
    op: str | None = msgspec.field(name="Collective name", default=None)
    dtype: str | None = None
    n_in: int | None = msgspec.field(name="In msg nelems", default=None)
    n_out: int | None = msgspec.field(name="Out msg nelems", default=None)
    group_size: int | None = msgspec.field(name="Group size", default=None)
    group: str | int | None = msgspec.field(name="Process Group Name", default=None)
    desc: str | None = msgspec.field(name="Process Group Description", default=None)
    ranks: str | None = msgspec.field(name="Process Group Ranks", default=None)
    seq: int | None = msgspec.field(name="Seq", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())


class Event(msgspec.Struct, gc=False):
    """One event of the trace. The fields are in Kineto's order, which saves a quarter of the decoder's time."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float = 0
    """Start in us."""
    dur: int | float = 0
    """Duration in us."""
    args: Args | None = None


Lane = tuple[int | str | None, int | str | None]
"""Where an event ran: a device and a stream, or a process and a thread."""
_Key = TypeVar("_Key")


class Message(NamedTuple):
    """The data that a collective moves, as far as it is recorded."""

    op: str
    """`all_reduce`, `all_gather`, ...; `send_recv` if the direction is unknown."""
    elements: int = 0
    """Number of elements of the input or the output, whichever is larger; 0 if unknown."""
    dtype: str = ""
    """Name in lower case, such as `float` or `bfloat16`; empty if unknown."""
    group: str = ""
    """Name of the process group; empty if unknown."""
    group_size: int = 0
    seq: int | None = None

    @property
    def size_bytes(self) -> int:
        """Size in bytes; 0 if the elements or the dtype are unknown."""
        return self.elements * DTYPE_BYTES.get(self.dtype, 0)


class HostCopy(NamedTuple):
    """The direction of a copy between host and device."""

    to_device: bool
    memory: Literal["pageable", "pinned", ""]
    """Kind of the host memory; empty = not recorded."""


_TABLE = table_beside(__file__)
KINDS: dict[str, str] = _TABLE["kinds"]
DTYPE_BYTES: dict[str, int] = _TABLE["dtype_bytes"]
_WORDS: dict[str, str] = _TABLE["words"]
HostWork = Literal[
    "", "data", "garbage_collection", "recompilation", "kernel_loading", "allocator", "checkpoint", "network", "input",
    "profiler", "sleep", "lock",
]  # fmt: skip
"""`input`: the host waits for outside input, as a server waits for requests; `profiler`: it serves the profiler that
records the trace. Empty = none of these. Of two that are nested and fill the same time, the first one is actionable."""
_WORK: dict[str, re.Pattern[str]] = patterns_beside(__file__, "host_work")
_COPY = _WORK.pop("copy")
_LIST = re.compile(r"-?\d+")
_COLLECTIVE = re.compile("".join(_TABLE["collective"]), re.IGNORECASE)


def collective_word(name: str) -> str:
    """Return the collective in the name of a kernel, an annotation or an op, or `collective` if it names none."""
    match = _COLLECTIVE.search(name)
    if match is None:
        return "collective"
    word = match.group(0).lower()
    return _WORDS.get(word.replace("_", ""), word)


def message_of_args(args: Args) -> Message:
    """Return a message from the arguments that Kineto records for kernels and `record_param_comms`."""
    elements = max(args.n_in or 0, args.n_out or 0)
    word = operation(args.op or "")
    return Message(
        op=collective_word(word) if word not in ("send", "recv") else word,
        elements=max(elements, 0),
        dtype=(args.dtype or "").lower(),
        group="" if args.group is None else str(args.group),
        group_size=args.group_size or 0,
        seq=args.seq,
    )


def message_of_shapes(name: str, args: Args | None) -> Message:
    """Return a message from the shapes that `record_shapes` adds to `nccl:all_reduce`, `gloo:all_reduce` and others."""
    op = operation(name)
    word = op if op in ("send", "recv", "barrier") else collective_word(op)
    if args is None or not len(args.dims):
        return Message(word)
    try:
        dims = msgspec.json.decode(args.dims)
        types = msgspec.json.decode(args.types) if len(args.types) else []
    except (msgspec.DecodeError, RecursionError):
        return Message(word)
    total = sum(map(elements, dims)) if isinstance(dims, list) else 0
    first = next((kind for kind in types if isinstance(kind, str) and kind), "") if isinstance(types, list) else ""
    return Message(word, total, first.lower())


def elements(shape: object) -> int:
    """Return the number of elements of a shape or of a list of shapes; 1 for an empty shape, 0 for an invalid one."""
    if not isinstance(shape, list) or len(shape) > 64:
        return 0
    if any(isinstance(size, list) for size in shape):
        return sum(elements(part) for part in shape)
    if not all(isinstance(size, int) and 0 <= size < 1 << 44 for size in shape):
        return 0
    return min(prod(shape), 1 << 50)


def ranks_of(text: str) -> tuple[int, ...]:
    """Parse a list of ranks such as `[0, 1]`; the result is empty if the list is abbreviated."""
    return () if "..." in text or not text.startswith("[") else tuple(map(int, _LIST.findall(text)[:1_000_000]))


@lru_cache(maxsize=4096)
def host_work(name: str) -> HostWork:
    """Return the kind of host work that an event of this name is."""
    return cast(HostWork, next((kind for kind, pattern in _WORK.items() if pattern.search(name)), ""))


def host_copy(name: str) -> HostCopy | None:
    """Return the direction of a copy of this name; None for copies between or within devices, and for fills."""
    match = _COPY.search(name)
    if match is None:
        return None
    origin, target = (match["from"] or match["from_word"][0], match["to"] or match["to_word"][0])
    memory: Literal["pageable", "pinned", ""] = ""
    if match["memory"]:
        memory = "pinned" if match["memory"] == "Pinned" else "pageable"
    return HostCopy(target == "D", memory) if origin != target else None


class Spans(Struct):
    """Intervals as columns; times are in ns since the trace's base time."""

    start: "array[int]" = field(default_factory=lambda: array("q"))
    end: "array[int]" = field(default_factory=lambda: array("q"))
    name: "array[int]" = field(default_factory=lambda: array("i"))
    """Indices in `Trace.names`."""
    lane: "array[int]" = field(default_factory=lambda: array("i"))
    """Indices in `Trace.lanes`."""

    def __len__(self) -> int:
        return len(self.start)

    def add(self, start_ns: int, end_ns: int, name: int, lane: int) -> None:
        """Append an interval."""
        self.start.append(start_ns)
        self.end.append(end_ns)
        self.name.append(name)
        self.lane.append(lane)


PAUSE_NS = 2_000_000  # Minimum length of a pause without a known name: launches take 5 to 100 us.
QUIET_NS = 500_000
"""Minimum time between two operations or calls of a thread in which it does not prepare launches. In 7 of 8 real traces
limited by their launches, at most 7% of that time is in stretches of 0.2 ms or more."""


class GroupInfo(Struct):
    """A process group as the trace describes it."""

    name: str
    desc: str = ""
    ranks: tuple[int, ...] = ()
    size: int = 0


class About(Struct):
    """Properties of a trace and its rank, without the events."""

    file: str
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    groups: dict[str, GroupInfo] = field(default_factory=dict)
    base_ns: int = 0
    """Time 0 of all spans, in ns since 1970."""
    on_accelerator: bool = False
    """Whether the job used accelerators, according to the header or to what its host did."""
    own_kinds: bool = False
    """Whether the device's events are of kinds of its own, so that what is busy time is taken from their names."""
    settings: dict[str, object] = field(default_factory=dict)
    """Settings of the profiler: `with_stack`, `profile_memory`, `record_shapes`."""
    problems: list[Problem] = field(default_factory=list)
    is_cut: bool = False
    """Whether the end of the file is missing. Kineto sorts by kind, so whole kinds of events may be missing too."""


class Trace(About):
    """One rank's trace. Spans are numbered by their index in the columns."""

    names: list[str] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    device: Spans = field(default_factory=Spans)
    """Kernels, copies and fills on the device; empty for a run on CPU."""
    is_memory: bytearray = field(default_factory=bytearray)
    """Per device span: 1 for a copy or fill, 0 for a kernel."""
    launch: "array[int]" = field(default_factory=lambda: array("q"))
    """Per device span: time of its launch by the host; -1 if unknown."""
    launcher: "array[int]" = field(default_factory=lambda: array("i"))
    """Per device span: lane of the launching host thread; -1 if unknown."""
    returned: "array[int]" = field(default_factory=lambda: array("q"))
    """Per device span: time at which the launching call returned; -1 if unknown."""
    copied_bytes: dict[int, int] = field(default_factory=dict)
    """Device span -> bytes that the copy moves, if recorded."""
    messages: dict[int, Message] = field(default_factory=dict)
    """Device span -> its collective, if recorded."""
    ops: Spans = field(default_factory=Spans)
    """CPU operations: all for a run on CPU, otherwise those that show phases, collectives and waits."""
    op_messages: dict[int, Message] = field(default_factory=dict)
    """Span of `ops` -> its collective, if recorded."""
    marks: Spans = field(default_factory=Spans)
    """Annotations on the host (steps, regions, `nccl:all_reduce`, `gloo:all_reduce`) and its `host_work`."""
    mark_messages: dict[int, Message] = field(default_factory=dict)
    syncs: Spans = field(default_factory=Spans)
    """Runtime calls in which the host waits for the device."""
    functions: Spans = field(default_factory=Spans)
    """Python functions on the host, by their stacks, that take at least `QUIET_NS`."""
    activity: Spans = field(default_factory=Spans)
    """When host threads run operations and calls, also those that are not kept; without their names."""
    fractional: bool = False
    """Whether any time is not a whole number of microseconds."""
    first_ns: int = 0
    last_ns: int = 0

    def add_activity(self, start_ns: int, end_ns: int, lane: int) -> None:
        """Add an operation or call. Of one that takes as long as a pause, only its start and end are activity."""
        if end_ns - start_ns >= PAUSE_NS:
            self.activity.add(start_ns, start_ns, 0, lane)
            start_ns = end_ns
        self.activity.add(start_ns, end_ns, 0, lane)

    @property
    def on_device(self) -> bool:
        """Whether the trace has any event on an accelerator."""
        return bool(self.device)


MAX_NAMES = 200_000
"""Maximum number of names kept of one trace; all others become `(other)`."""
_SPARSE = 16
"""Maximum ratio of the range of numbers to their count at which a table is smaller than a dict."""


class Indices(dict[_Key, int]):
    """Maps each key to its index; a new key is appended to the list."""

    def __init__(self, listed: list[_Key]) -> None:
        super().__init__()
        self._listed = listed

    def __missing__(self, key: _Key) -> int:
        self[key] = index = len(self)
        self._listed.append(key)
        return index


class Names(Indices[str]):
    """Indices of the first `MAX_NAMES` names, and of one for all others."""

    def __missing__(self, name: str) -> int:
        if len(self) > MAX_NAMES:
            return self["(other)"]
        return super().__missing__("(other)" if len(self) == MAX_NAMES else name)


def places(listed: "array[int]", numbers: "array[int]") -> "array[int]":
    """Return the last index in `listed` of each number in `wanted`; -1 if it is not there.

    Correlation ids are dense, so a table indexed by them takes a few bytes per id; a dict takes over a hundred.
    """
    low, high = (min(listed), max(listed)) if listed else (0, -1)
    if high - low + 1 > _SPARSE * len(listed):
        place_of = {number: n for n, number in enumerate(listed)}
        return array("i", (place_of.get(number, -1) for number in numbers))
    table = array("i", (-1,)) * (high - low + 1)
    for n, number in enumerate(listed):
        table[number - low] = n
    return array("i", (table[number - low] if low <= number <= high else -1 for number in numbers))
