"""What one simulated rank called, in a form that equal ranks share: plain values that travel between processes.

Knows neither torch nor who recorded it. A program is a list of entries (what is called where, with which arguments)
and a list of events: entry i is issued, or the n-th issued call is waited for.
"""

from array import array
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from diagnostics.evidence.ring.format import ANY_PEER, NO_PEER

NEW_GROUP = "new_group"
"""Making a process group counts as a collective of the default group: all its ranks must make the same one."""


class Entry(NamedTuple):
    """One kind of call: all that the ranks must agree on, and where it stands."""

    group: int
    """Index into the rank's own list of groups."""
    op: str
    wire: str
    """What it is for the other ranks: several functions are one and the same collective."""
    user_op: str
    dtype: str
    typed: bool
    """Whether ranks must agree on the dtype, not only on bytes."""
    reduce_op: str
    inputs: str
    """JSON list of shapes."""
    outputs: str
    splits: str
    root: int
    """Rank in the group of the root or peer; NO_PEER = none, ANY_PEER = any."""
    tag: int
    numel: int
    amount: int
    """What all ranks must agree on: elements or bytes over the group; -1 = may differ by rank."""
    p2p: Literal["", "send", "recv"]
    site: str
    """`file:line<tab>function` of the user's innermost frame."""
    stack: str
    """The user's frames, innermost first, each as `site`, one a line."""
    region: str
    step: int
    """Counted from 1; -1 before the first."""
    sent: tuple[int, ...] = ()
    """Bytes for each member of the group; one number = the same for all, none = not a matter of sizes."""
    taken: tuple[int, ...] = ()
    """Bytes expected of each member, likewise: what one sends another must expect."""

    def agreed(self) -> tuple[object, ...]:
        """What must be the same on all ranks of the group at this position."""
        return (self.wire, self.amount, self.reduce_op, self.dtype if self.typed else "", self.root)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group that a rank belongs to."""

    name: str
    """torch's own: equal on all members that made their groups in the same order."""
    ranks: tuple[int, ...]
    """Global, by rank in the group."""
    desc: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """The calls of one rank; ranks that call the same share one."""

    entries: tuple[Entry, ...]
    events: bytes
    """int32: e >= 0 issues entry e; e < 0 waits for the issued call of number -1 - e."""

    def steps(self) -> "array[int]":
        """The events as numbers."""
        events = array("i")
        events.frombytes(self.events)
        return events


@dataclass(frozen=True, slots=True)
class End:
    """How a rank's simulation ended."""

    kind: Literal["finished", "exited", "raised", "killed", "stalled"] = "finished"
    """`finished`: it did all that was asked. `exited`: it went home earlier. `stalled`: it stood still on its own."""
    error: dict[str, object] = field(default_factory=dict)
    """Content of error.json for `raised`."""
    signal: str = ""
    code: int = 0
    """Exit code of `exited`."""
    stack: str = ""
    """Where a stalled rank stood, as faulthandler writes it."""
    step: int = -1
    """Last step that began, counted from 1."""
    region: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One simulated rank."""

    rank: int
    program: Program
    groups: tuple[Group, ...]
    end: End
    errors: str = ""
    """What it wrote to standard error."""
    made: tuple[tuple[tuple[int, ...], str], ...] = ()
    """Ranks and description of every group made after the default one, also those without this rank, in order."""
    rounds: int = 0
    """Steps that it did: those it began in a job of dtk, those its optimizer made in a script."""


__all__ = ["ANY_PEER", "NEW_GROUP", "NO_PEER", "End", "Entry", "Group", "Program", "Record"]
