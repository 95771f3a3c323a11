"""What one simulated rank called, as plain values that equal ranks share and that travel between processes.

Entries say what is called where, with which arguments; events, that an entry is issued or an issued call waited for.
"""

from array import array
from dataclasses import dataclass
from typing import Literal, NamedTuple

from diagnostics.evidence.calls import Wire
from diagnostics.evidence.model import Frame, RankError

NEW_GROUP = "new_group"
"""Making a process group counts as a collective of the default group: all its ranks must make the same one."""


class Entry(NamedTuple):
    """One kind of call: what the ranks must agree on, and where it is made."""

    group: int
    """Index into the rank's own list of groups."""
    op: str
    """The function of torch.distributed."""
    wire: Wire
    """What must be the same on all ranks of the group at this position; its root is the rank in the group."""
    user_op: str
    """The object collective that the call is a part of; empty for any other call."""
    dtype: str
    sizes: str
    """JSON list of the shapes of the inputs, or of the outputs where there are no inputs."""
    p2p: Literal["", "send", "recv"]
    peer: int | None
    """Of a send or receive: rank in the group; None = any."""
    tag: int
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
        """Return the events as integers."""
        events = array("i")
        events.frombytes(self.events)
        return events


@dataclass(frozen=True, slots=True)
class End:
    """How a rank's simulation ended."""

    kind: Literal["finished", "exited", "raised", "killed", "stalled"] = "finished"
    """`finished`: it did all that was asked. `exited`: it ended earlier. `stalled`: it stopped outside any call."""
    error: RankError | None = None
    """The exception of `raised`."""
    signal: str = ""
    """Of `killed`."""
    code: int = 0
    """Exit code of `exited`."""
    stack: tuple[Frame, ...] = ()
    """Where a stalled rank stood, innermost first."""
    step: int = -1
    """Last step that began, counted from 1."""


@dataclass(frozen=True, slots=True)
class Record:
    """One simulated rank."""

    rank: int
    program: Program
    groups: tuple[Group, ...]
    end: End
    errors: str = ""
    """What it wrote to standard error, tracebacks included."""
    made: tuple[tuple[tuple[int, ...], str], ...] = ()
    """Ranks and description of every group made after the default one, also those without this rank, in order."""
    rounds: int = 0
    """Steps that it did: those it began in a job of dtk, those its optimizer made in a script."""

    def label(self, group: int) -> str:
        """Return a label for a group that is the same on all ranks, even if each of them is in a different group."""
        members = self.groups[group]
        return f"{members.desc} {len(members.ranks)}" if members.desc not in ("", "undefined") else members.name

    def issued(self) -> list[Entry]:
        """Return the calls in the order in which they were issued."""
        entries = self.program.entries
        return [entries[event] for event in self.program.steps() if event >= 0]
