"""The calls of one simulated rank as plain values, which equal ranks share and processes exchange.

An entry is a call with its site and arguments; an event issues an entry, or waits for an issued call.
"""

from array import array
from dataclasses import dataclass
from typing import Literal, NamedTuple

from diagnostics.contract.findings import Group
from diagnostics.evidence.calls import Wire
from diagnostics.evidence.model import Frame, RankError
from diagnostics.evidence.ring.format import ANY_PEER, NO_PEER
from dtk.record.signatures import KINDS

NEW_GROUP = "new_group"
"""Creating a process group counts as a collective of the default group: all ranks must create the same one."""


class Entry(NamedTuple):
    """One kind of call: what the ranks must agree on, and its call site."""

    group: int
    """Index into the rank's own list of groups."""
    op: str
    """The function of torch.distributed."""
    wire: Wire
    """What must be equal on all ranks of the group at this position; the root is a rank in the group."""
    user_op: str
    """The object collective that the call belongs to; empty for other calls."""
    dtype: str
    sizes: str
    """JSON list of the input shapes, or of the output shapes if there are no inputs."""
    p2p: Literal["", "send", "recv"]
    peer: int | None
    """Rank in the group of the peer of a send or receive; None = any."""
    tag: int
    site: str
    """`file:line<tab>function` of the user's innermost frame."""
    stack: str
    """The user's frames, innermost first, each formatted as `site`, one per line."""
    region: str
    step: int
    """Step, counted from 1; -1 before the first."""
    sent: tuple[int, ...] = ()
    """Bytes for each member of the group; one number if equal for all, empty if sizes do not matter."""
    taken: tuple[int, ...] = ()
    """Bytes expected from each member, in the same form; they must equal what the member sends."""


@dataclass(frozen=True, slots=True)
class Program:
    """The calls of one rank; ranks with equal calls share one program."""

    entries: tuple[Entry, ...]
    events: bytes
    """int32: e >= 0 issues entry e; e < 0 waits for issued call -1 - e."""

    def steps(self) -> "array[int]":
        """Return the events as integers."""
        events = array("i")
        events.frombytes(self.events)
        return events


@dataclass(frozen=True, slots=True)
class End:
    """How a rank's simulation ended."""

    kind: Literal["finished", "exited", "raised", "killed", "stalled"] = "finished"
    """`finished`: did all requested steps. `exited`: ended earlier. `stalled`: blocked outside any call."""
    error: RankError | None = None
    """The exception of `raised`."""
    signal: str = ""
    """Signal of `killed`."""
    code: int = 0
    """Exit code of `exited`."""
    stack: tuple[Frame, ...] = ()
    """Where a stalled rank was blocked, innermost frame first."""
    step: int = -1
    """Last step that started, counted from 1."""


@dataclass(frozen=True, slots=True)
class Record:
    """One simulated rank."""

    rank: int
    program: Program
    groups: tuple[Group, ...]
    end: End
    errors: str = ""
    """Its standard error, including tracebacks."""
    new_groups: tuple[tuple[tuple[int, ...], str], ...] = ()
    """Ranks and description of every group after the default one, in order, including those without this rank."""
    rounds: int = 0
    """Number of steps: started ones in a dtk job, optimizer steps in a script."""

    def label(self, group: int) -> str:
        """Return a label for a group that is the same on all ranks, even if each of them is in a different group."""
        members = self.groups[group]
        return f"{members.desc} {len(members.ranks)}" if members.desc not in ("", "undefined") else members.name

    def issued(self) -> list[Entry]:
        """Return the calls in the order of issue."""
        entries = self.program.entries
        return [entries[event] for event in self.program.steps() if event >= 0]


Ints = tuple[int, ...]
WIRES = {kind.op: (kind.wire, kind.typed) for kind in KINDS.values()}


class Tape:
    """Duck type of `dtk.record.ring.Ring`: the same methods are called in the same way."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.issued = 0
        """Number of calls so far, which is the number of the next one."""
        self.stack = ""
        """Stack of the next call; likewise `sent` and `taken`."""
        self.sent: tuple[int, ...] = ()
        self.taken: tuple[int, ...] = ()
        """See `Entry`."""
        self.last: Entry | None = None
        """The last call that was issued."""
        self._texts: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}
        self._entries: dict[Entry, int] = {}
        self._events = array("i")
        self._waited: set[int] = set()

    def text(self, value: str) -> int:
        """Return the number of an interned text."""
        number = self._numbers.setdefault(value, len(self._texts))
        if number == len(self._texts):
            self._texts.append(value)
        return number

    def add_group(self, name: str, ranks: tuple[int, ...], desc: str, generation: int) -> int:
        """Return the index of a new group of this rank."""
        self.groups.append(Group(f"{name}#{generation}" if generation else name, ranks, desc))
        return len(self.groups) - 1

    def begin(self, at: Ints, texts: Ints, sizes: Ints, numbers: Ints, p2p: bool, asynchronous: bool) -> int:
        """Record that a call is issued and return its number; the arguments are those of `Ring.begin`."""
        group, _, _, step = at
        site, region, op, user_op, dtype = (self._texts[number] for number in texts)
        inputs, outputs, reduce_op, splits = (self._texts[number] for number in sizes)
        root, tag, _, amount, _ = numbers
        wire, typed = WIRES.get(op, (op, False))
        peer = None if root in (NO_PEER, ANY_PEER) else self.groups[group].ranks.index(root)
        amounts, dtypes = (amount,) if amount >= 0 else (), (dtype,) if typed else ()
        agreed = Wire(wire, amounts, dtypes, None if p2p else peer, reduce_op)
        shapes = f"[{splits}]" if op == NEW_GROUP and splits else inputs or outputs
        way: Literal["", "send", "recv"] = "" if not p2p else "send" if op in ("send", "isend") else "recv"
        what = (group, op, agreed, user_op, dtype, shapes, way, peer if p2p else None, tag)
        self.last = entry = Entry(*what, site, self.stack, region, step, self.sent, self.taken)
        self._events.append(self._entries.setdefault(entry, len(self._entries)))
        self.issued += 1
        return self.issued - 1

    def end(self, number: int, group: int, seq: int, state: int, p2p: bool) -> None:
        """Do nothing: the matcher decides whether a call completes."""

    def unsound(self) -> None:
        """Do nothing: an unrecordable call is reported at its call site."""

    def wait(self, number: int) -> None:
        """Record that the rank waits until this call is complete."""
        if number not in self._waited:
            self._waited.add(number)
            self._events.append(-1 - number)

    def program(self) -> Program:
        """Return the program recorded so far."""
        return Program(tuple(self._entries), self._events.tobytes())
