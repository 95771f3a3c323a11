"""A profiler trace in compact columns."""

from array import array

from msgspec import Struct, field

from diagnostics.evidence.model import Problem
from diagnostics.evidence.trace.events import Lane, Message


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
    devices: bool = False
    """Whether the header lists accelerators."""
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
    fractional: bool = False
    """Whether any time is not a whole number of microseconds."""
    first_ns: int = 0
    last_ns: int = 0

    @property
    def on_device(self) -> bool:
        """Whether the trace has any event on an accelerator."""
        return bool(self.device)


MAX_NAMES = 200_000
"""Maximum number of names kept of one trace; all others become `(other)`."""
_SPARSE = 16
"""Maximum ratio of the range of numbers to their count at which a table is smaller than a dict."""


class Names(dict[str, int]):
    """Maps each name to its index; a new name is appended to the list."""

    def __init__(self, listed: list[str]) -> None:
        super().__init__()
        self._listed = listed

    def __missing__(self, name: str) -> int:
        if len(self) > MAX_NAMES:
            return self["(other)"]
        if len(self) == MAX_NAMES:
            name = "(other)"
        self[name] = index = len(self)
        self._listed.append(name)
        return index


class Lanes(dict[tuple[int | str | None, int | str | None], int]):
    """Maps each lane to its index; a new lane is appended to the list."""

    def __init__(self, listed: list[Lane]) -> None:
        super().__init__()
        self._listed = listed

    def __missing__(self, key: tuple[int | str | None, int | str | None]) -> int:
        self[key] = index = len(self)
        self._listed.append(Lane(*key))
        return index


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
