"""The calls of one rank: collectives and point-to-point calls, in one format for all recorders."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from diagnostics.contract.files import patterns_beside, table_beside
from diagnostics.contract.formatting import file_name, first_of
from diagnostics.evidence.model import Frame


class GroupKey(NamedTuple):
    """A process group, equal on all its ranks, unlike `pg_id`: each rank numbers its own groups."""

    recorder: str
    """`nccl`, `gloo`, ...; `dtk` for dtk's ring. Each numbers the calls independently."""
    name: str
    desc: str

    @property
    def on_devices(self) -> bool:
        """Whether its calls run in order on devices, of which the recorder knows; gloo's and dtk's see hosts."""
        return self.recorder not in {"gloo", "dtk"}

    @property
    def label(self) -> str:
        """Description of the group, or its name."""
        return self.desc if self.desc not in {"", "undefined"} else self.name


class Wire(NamedTuple):
    """The part of a signature that must be equal on all ranks of a group at one position."""

    op: str
    amounts: tuple[int, ...]
    """Elements of each tensor; empty if ranks may differ (all_to_all)."""
    dtypes: tuple[str, ...]
    root: int | None = None
    reduce_op: str = ""


class Described(NamedTuple):
    """A signature, and its formatted text."""

    wire: Wire
    op: str
    """The operation as recorded."""
    arguments: str = ""
    """For example `[1024] float32`."""

    @property
    def text(self) -> str:
        """Format both: `all_reduce [1024] float32`."""
        return f"{self.op} {self.arguments}".strip()


class Call(Struct):
    """One collective or point-to-point call of one rank."""

    key: GroupKey
    seq: int
    """Position in the group (0 if unknown); for point-to-point calls, among those of the group on this rank."""
    described: Described
    done: bool
    created_s: float | None
    frames: object = None
    """Frames as recorded, until `settle` converts them."""
    stack: tuple[Frame, ...] = ()
    """Innermost first, without frames of torch and the standard library; empty if stacks were not recorded."""
    user_op: str = ""
    """The function that the user called, if it differs from the recorded operation."""
    p2p: str = ""
    """`send` or `recv`; empty for a collective."""
    peer: int | None = None
    """Global rank; None for any."""
    tag: int | None = None
    """Tag of a send or receive; None if the recorder omits it."""
    timeout_s: float | None = None
    step: int | None = None
    region: str = ""
    completion_known: bool = True
    """False if the recorder sees calls return, but not their work complete."""
    begun: bool = False
    """Whether the recorder saw the device begin it; torch's recorder does if `TORCH_NCCL_ENABLE_TIMING=1`."""

    @property
    def wire(self) -> Wire:
        """Return the signature."""
        return self.described.wire

    @property
    def text(self) -> str:
        """Format the call: `broadcast_object_list (broadcast [1] int64)`, `all_reduce [1024] float32`."""
        if self.user_op and self.user_op != self.wire.op:
            return f"{self.user_op} ({self.described.text})"
        return self.described.text

    @property
    def site(self) -> Frame | None:
        """Return the innermost frame of user code."""
        return self.stack[0] if self.stack else None

    @property
    def place(self) -> str:
        """Return `/job/train.py:12`, or `position 2` if stacks were not recorded."""
        return f"{self.site.file}:{self.site.line}" if self.site else f"position {self.seq:,}"

    def cited(self, position: bool = True) -> str:
        """Return `all_reduce [8] float32 (#2, train.py:17)`; the position only on request, never for p2p."""
        parts = [f"#{self.seq:,}"] if position and self.seq and not self.p2p else []
        parts += [f"{file_name(self.site.file)}:{self.site.line}"] if self.site else []
        return self.text + (f" ({', '.join(parts)})" if parts else "")


class Dump(Struct):
    """The last calls of one rank, oldest first, from one file."""

    rank: int | None
    file: str
    recorder: str
    calls: list[Call]
    counters: dict[GroupKey, tuple[int, int]] = field(default_factory=dict)
    """Last position that was enqueued and completed, if the recorder counts them; -1 if none."""
    members: dict[GroupKey, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of this rank's groups, if recorded."""
    only_default_group: bool | None = None
    """Gloo: whether this rank belongs only to the default group; None if unknown."""
    outside: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of numbered group names, both exclusive, between which this rank has no group."""
    world_size: int | None = None
    time_s: float | None = None
    """Time of writing; None for torch's dumps, which do not record it."""
    step: int | None = None
    region: str = ""
    black_box: bool = False
    """A periodic snapshot: the rank was not necessarily stuck at that time."""
    attempt: int | None = None
    damaged: int = 0
    """Number of entries that were partially written when the process died."""

    def last_s(self) -> float:
        """Return the time of the latest call; 0 if there are none."""
        return max((call.created_s for call in self.calls[-LATEST:] if call.created_s), default=0.0)


class CallFile(Protocol):
    """A handle for one rank's calls: a flight dump, a black box, a ring, or the history of a simulated rank."""

    @property
    def file(self) -> str:
        """Path relative to the evidence's root."""

    @property
    def rank(self) -> int | None:
        """Rank according to the file's name."""

    def load(self) -> list[Dump]:
        """Return the dumps in the file; raise OSError or ValueError."""


LATEST = 64  # Last calls of a dump among which the youngest is: a few are recorded out of order.
SIMULATED = "simulation"  # The kind of simulated ranks' histories, which never were files.
_TABLE = table_beside(__file__)
_OPS: dict[str, str] = _TABLE["operations"]
_DTYPES: dict[str, str] = _TABLE["dtypes"]
USER_CALLS = frozenset(_TABLE["user_calls"])
"""Functions of torch.distributed that recorders record as a different operation, or as several."""
TRANSFERS = {"send", "recv", "isend", "irecv", "batch_isend_irecv"}
"""Functions whose calls only two ranks count alike, so that ranks have no position in common at which they differ."""
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
NEEDS_ALL = {"all_reduce", "all_gather", "reduce_scatter", "barrier"}
"""Operations that complete on no rank before all have begun them (an all_to_all may take nothing from some)."""


def operation(name: str) -> str:
    """Return the canonical name of an operation: `nccl:_all_gather_base` -> `all_gather`."""
    op = name.rpartition(":")[2].strip().lower()
    for suffix in ("_coalesced", "_sparse"):
        op = op.removesuffix(suffix)
    return _OPS.get(op, op)


def dtype(name: str) -> str:
    """Return torch's Python name of a dtype: `Float` -> `float32`."""
    return _DTYPES.get(name, name.removeprefix("torch."))


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
    shapes = ["scalar" if size in ([], ()) else str(size) for size in sizes]
    return Described(wire, op, " ".join(part for part in (first_of(shapes, 3), kind, *parts) if part))


_LIBRARY = patterns_beside(__file__, "files")["library"]
_BACKWARD = frozenset({"backward", "_engine_run_backward"})
"""Functions of torch, and of libraries around it, that run autograd: everything called within is backward."""
_STACKS: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}
_FRAMES: dict[tuple[str, int, str], Frame | None] = {}  # Location -> its shared frame object; None for a library's.
_MAX_CACHED = 100_000


def is_library(file: str) -> bool:
    """Return whether a file belongs to torch, the standard library or an installed package rather than to the user."""
    return bool(_LIBRARY.search(file.replace("\\", "/")))


def own_line(frames: Iterable[Frame]) -> Frame | None:
    """Return the innermost frame of user code."""
    return next((frame for frame in frames if not is_library(frame.file)), None)


def settle(call: Call) -> Call:
    """Return the call with only the user's frames, shared between ranks to save memory."""
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
