"""The tape of one simulated rank: takes the place of the ring behind `dtk.record.collectives.CollectiveLog`, keeps
every call and the moment at which each is waited for, and writes no file.
"""

from array import array
from typing import Literal

from diagnostics.evidence.calls import Wire
from diagnostics.evidence.ring.format import ANY_PEER, NO_PEER
from dtk.preflight.calls import NEW_GROUP, Entry, Group, Program
from dtk.record.signatures import KINDS

Ints = tuple[int, ...]
WIRES = {kind.op: (kind.wire, kind.typed) for kind in KINDS.values()}


class Tape:
    """Duck type of `dtk.record.ring.Ring`: the same methods are called in the same way."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.issued = 0
        """Calls so far; the next one has this number."""
        self.unsound_calls = 0
        self.stack = ""
        """Of the call that is about to begin, as for `sent` and `taken`."""
        self.sent: tuple[int, ...] = ()
        self.taken: tuple[int, ...] = ()
        """See `Entry`."""
        self.last: Entry | None = None
        """The call that began last."""
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
        """Index of a new group of this rank."""
        self.groups.append(Group(f"{name}#{generation}" if generation else name, ranks, desc))
        return len(self.groups) - 1

    def begin(
        self,
        group: int,
        seq: int,
        state: int,
        step: int,
        texts: Ints,
        sizes: Ints,
        numbers: Ints,
        p2p: bool,
        later: bool,
    ) -> int:
        """Record that a call is issued and return its number; the arguments are those of `Ring.begin`."""
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
        """Nothing: whether it completes is for the matcher to say."""

    def unsound(self) -> None:
        """Count a call that could not be recorded."""
        self.unsound_calls += 1

    def wait(self, number: int) -> None:
        """Record that the rank waits until this call is complete."""
        if number not in self._waited:
            self._waited.add(number)
            self._events.append(-1 - number)

    def program(self) -> Program:
        """Return the program recorded so far."""
        return Program(tuple(self._entries), self._events.tobytes())
