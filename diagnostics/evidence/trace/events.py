"""Typed records of a Kineto trace, and the names that profilers give categories, collectives, host work and copies."""

import re
from functools import lru_cache
from math import prod
from typing import Literal, NamedTuple, cast

import msgspec

from diagnostics.contract.files import patterns_beside, table_beside
from diagnostics.evidence.calls import operation


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


class Lane(NamedTuple):
    """Where an event ran: a device and a stream, or a process and a thread."""

    owner: int | str | None
    line: int | str | None


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
    "", "data", "garbage_collection", "recompilation", "kernel_loading", "allocator", "checkpoint", "input"
]
"""`input`: the host waits for outside input, as a server waits for requests. Empty = none of these."""
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
