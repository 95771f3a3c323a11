"""The calls of one rank: collectives and point-to-point calls, from whichever recorder."""

import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import file_name
from diagnostics.evidence.model import Evidence, Frame


class GroupKey(NamedTuple):
    """A process group, the same on all its ranks. `pg_id` is not: each rank counts its own groups."""

    recorder: str
    """`nccl`, `gloo`, ...; `dtk` for dtk's ring. Each counts the calls by itself."""
    name: str
    desc: str

    @property
    def label(self) -> str:
        """The description, else the name."""
        return self.desc if self.desc not in {"", "undefined"} else self.name


class Wire(NamedTuple):
    """What all ranks of a group must agree on at one position."""

    op: str
    amounts: tuple[int, ...]
    """Elements of each tensor; empty where ranks may differ (all_to_all)."""
    dtypes: tuple[str, ...]
    root: int | None = None
    reduce_op: str = ""


class Described(NamedTuple):
    """A signature, and how it is printed."""

    wire: Wire
    text: str
    """`all_reduce [1024] float32`"""


class Call(Struct):
    """One collective or point-to-point call of one rank."""

    key: GroupKey
    seq: int
    """Position in the group (0 = not known); for point-to-point that among those of the group on this rank."""
    described: Described
    done: bool
    created_s: float | None
    frames: object = None
    """As recorded, until `settle` makes them a stack."""
    stack: tuple[Frame, ...] = ()
    """Innermost first, without frames of torch and the interpreter; empty when stacks were not recorded."""
    user_op: str = ""
    """The call that the user made, where it is another than the recorded operation."""
    p2p: str = ""
    """`send` or `recv`; empty for a collective."""
    peer: int | None = None
    """Global rank; None = any."""
    tag: int | None = None
    """Of a send or receive; None where the recorder leaves it out."""
    timeout_s: float | None = None
    step: int | None = None
    region: str = ""
    completion_known: bool = True
    """False where the recorder sees calls return but not the work complete."""

    @property
    def wire(self) -> Wire:
        """The signature."""
        return self.described.wire

    @property
    def text(self) -> str:
        """`broadcast_object_list (broadcast [1] int64)`, `all_reduce [1024] float32`."""
        if self.user_op and self.user_op != self.wire.op:
            return f"{self.user_op} ({self.described.text})"
        return self.described.text

    @property
    def site(self) -> Frame | None:
        """The user's own line."""
        return self.stack[0] if self.stack else None

    @property
    def place(self) -> str:
        """`/job/train.py:12`, or `position 2` where stacks were not recorded."""
        return f"{self.site.file}:{self.site.line}" if self.site else f"position {self.seq}"

    def cited(self, position: bool = True) -> str:
        """`all_reduce [8] float32 (#2, train.py:17)`; the position only on demand and never of a send or receive."""
        parts = [f"#{self.seq}"] if position and self.seq and not self.p2p else []
        parts += [f"{file_name(self.site.file)}:{self.site.line}"] if self.site else []
        return self.text + (f" ({', '.join(parts)})" if parts else "")


class Dump(Struct):
    """The last calls of one rank, oldest first, as one file tells them."""

    rank: int | None
    file: str
    recorder: str
    calls: list[Call]
    counters: dict[GroupKey, tuple[int, int]] = field(default_factory=dict)
    """Last position that was enqueued and completed, where the recorder counts them; -1 = never."""
    members: dict[GroupKey, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of the groups that this rank belongs to, where the recorder says so."""
    only_default_group: bool | None = None
    """Gloo: whether this rank belongs to no group but the default one; None when the dump does not say."""
    outside: list[tuple[int, int]] = field(default_factory=list)
    """Numbered names of groups between which this rank belongs to none, both ends excluded."""
    world_size: int | None = None
    time_s: float | None = None
    """When it was written; None for torch's own dumps, which do not say."""
    step: int | None = None
    region: str = ""
    black_box: bool = False
    """A periodic snapshot: the rank was not necessarily stuck when it was written."""
    attempt: int | None = None
    damaged: int = 0
    """Entries that were torn when the process died."""

    def last_s(self) -> float:
        """When the youngest call was made; 0 when there is none."""
        return max((call.created_s for call in self.calls[-64:] if call.created_s), default=0.0)


class CallFile(Protocol):
    """A handle on one rank's calls: a flight dump, a black box, a ring, or the history of a simulated rank."""

    @property
    def file(self) -> str:
        """Relative to the evidence's root."""
        ...

    @property
    def rank(self) -> int | None:
        """As its name says."""
        ...

    def load(self) -> list[Dump]:
        """Return the dumps in it; raises OSError or ValueError."""
        ...


SIMULATED = "simulation"
"""The kind of histories of simulated ranks, which were never files."""


def call_files(evidence: Evidence) -> list[CallFile]:
    """Return everything that holds calls: flight dumps, then rings, then histories of simulated ranks."""
    return [file for kind in ("flight", "ring", SIMULATED) for file in evidence.files.get(kind, ())]


_TABLE = table_beside(__file__)
_OPS: dict[str, str] = _TABLE["operations"]
_DTYPES: dict[str, str] = _TABLE["dtypes"]
USER_CALLS = frozenset(_TABLE["user_calls"])
"""Functions of torch.distributed that the recorders show as something else, or in parts."""
ROOTED = {"broadcast", "reduce", "gather", "scatter"}


def operation(name: str) -> str:
    """Return the common name of an operation: `nccl:_all_gather_base` -> `all_gather`."""
    op = name.rpartition(":")[2].strip().lower()
    for suffix in ("_coalesced", "_sparse"):
        op = op.removesuffix(suffix)
    return _OPS.get(op, op)


def dtype(name: str) -> str:
    """Torch's Python name of a type: `Float` -> `float32`."""
    return _DTYPES.get(name, name.removeprefix("torch."))


def text_of(op: str, sizes: Iterable[object], dtypes: Iterable[str], extra: str = "") -> str:
    """`all_reduce [1024], [8] float32`, `all_reduce scalar float32`."""
    shapes = ["scalar" if size in ([], ()) else str(size) for size in sizes]
    shown = ", ".join(shapes[:3]) + (f" and {len(shapes) - 3} more" if len(shapes) > 3 else "")
    kinds = "/".join(dict.fromkeys(dtypes))
    return " ".join(part for part in (op, shown, kinds, extra) if part)


def describe(
    op: str,
    wire: Wire,
    sizes: Iterable[object],
    kind: str,
    p2p: str = "",
    peer: int | None = None,
    tag: int | None = None,
) -> Described:
    """Return a signature with its text: `broadcast [8] float32 root 2`, `recv [4] float32 from any tag 1`."""
    if p2p:
        parts = [f"{'to' if p2p == 'send' else 'from'} {'any' if peer is None else peer}", f"tag {tag}" if tag else ""]
    else:
        parts = [wire.reduce_op, "" if wire.root is None else f"root {wire.root}"]
    return Described(wire, text_of(op, sizes, (kind,), " ".join(part for part in parts if part)))


_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/|(?:^|/)lib/python3[.\d]*t?/|(?:^|/)torch/(?:distributed|nn|utils|_|autograd|"
    r"optim|multiprocessing|func|fx|cuda|onnx|export)|^<|frozen |(?:^|/)(?:pytorch|libtorch)[^/]*\.so|^\?*$"
)
_PLUMBING = re.compile(r"(?:^|/)dtk/(?:record|strategies|parallel)/")
"""dtk's own wrappers around torch's calls are never what the user wrote."""
_BACKWARD = frozenset({"backward", "_engine_run_backward"})
"""Functions of torch that run autograd, and of libraries around them: whatever is called within is backward."""
_STACKS: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}
_FRAMES: dict[tuple[str, int, str], Frame | None] = {}
"""Place -> the one frame object of it; None for a library's."""
_MAX_CACHED = 100_000


def is_library(file: str) -> bool:
    """Whether a file belongs to torch, the interpreter or an installed package rather than to the user."""
    file = file.replace("\\", "/")
    return bool(_LIBRARY.search(file) or _PLUMBING.search(file))


def own_line(frames: Iterable[Frame]) -> Frame | None:
    """Return the user's innermost line of a stack."""
    return next((frame for frame in frames if not is_library(frame.file)), None)


def settle(call: Call) -> Call:
    """Return the call with only the user's frames, which ranks share, so that it can be kept."""
    frames, call.frames = call.frames, None
    if not isinstance(frames, list | tuple):
        return call
    users: list[Frame] = []
    for raw in frames:
        if not isinstance(raw, dict):
            continue
        name, file, line = str(raw.get("name", "")), str(raw.get("filename", "")), raw.get("line", 0)
        place = (file, line if isinstance(line, int) else 0, name)
        if place not in _FRAMES:
            if len(_FRAMES) >= _MAX_CACHED:
                _FRAMES.clear()
            _FRAMES[place] = None if is_library(file) else Frame(*place)
        frame = _FRAMES[place]
        if frame is not None:
            users.append(frame)
        elif not users and name in USER_CALLS:
            call.user_op = name
        elif name in _BACKWARD and not call.region:
            call.region = "backward"
    if len(_STACKS) >= _MAX_CACHED:
        _STACKS.clear()
    stack = tuple(users)
    call.stack = _STACKS.setdefault(stack, stack)
    return call
