"""State shared in the process of a simulated rank, and the works that its calls return. A work has harmless values at
once; where ranks are simulated together, it receives the true ones when it is waited for.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dtk.preflight.calls import Tape
from dtk.preflight.exchange import Exchange, Key, Offer, dtypes_of, fill, packed
from dtk.record.collectives import CollectiveLog


class SimulatedRank:
    """What all groups of this process share while a rank is simulated."""

    def __init__(self, exchange: Exchange, world_size: int, steps: int) -> None:
        self.world_size = world_size
        self.steps = steps
        """How many this rank is to do; 0 = to its own end."""
        self.step = -1
        """The one in progress, counted from 1; -1 before the first."""
        self.rounds = 0
        """Steps so far; see `Record`."""
        self.joined = False
        """Whether it made its default group."""
        self.tape = Tape()
        self.log = CollectiveLog(self.tape)  # type: ignore[arg-type]
        self.exchange = exchange
        self.made: list[tuple[tuple[int, ...], str]] = []
        """Every group that was made after the default one: ranks and description."""
        self.expected: dict[Key, list[Expected]] = {}
        """By group: results that are not there yet, in the order of their calls."""
        self._counts: Counter[Key] = Counter()
        """Sends and receives so far, by way."""

    def send(self, group: str, receiver: int, tag: int, tensors: list[Tensor]) -> None:
        """Leave values for a receive."""
        rank = self.exchange.rank
        key = self._numbered((group, rank, receiver, tag))
        if self.exchange.carries("root", tensors):
            ends, dtypes = (rank, receiver), dtypes_of(tensors)
            self.exchange.offer(Offer(key, rank, ends, (), "root", "", rank, 1, dtypes, packed(tensors)))

    def receive(self, group: str, sender: int, tag: int, tensors: list[Tensor]) -> list["Expected"]:
        """Return what a send leaves, where it reaches this rank."""
        key = self._numbered((group, sender, self.exchange.rank, tag))
        carried = self.exchange.carries("root", tensors)
        return [Expected(self.exchange, key, (sender,), tensors)] if carried else []

    def _numbered(self, way: Key) -> Key:
        self._counts[way] += 1
        return (*way, self._counts[way])


current: SimulatedRank | None = None
"""The rank that is simulated in this process."""


@dataclass(slots=True, eq=False)
class Expected:
    """A result that is asked for when somebody waits."""

    exchange: Exchange
    key: Key
    needed: tuple[int, ...]
    outputs: list[Tensor]
    here: bool = False
    """Whether it was fetched."""

    def fetch(self) -> None:
        """Put the values in their places."""
        self.here = True
        answer = self.exchange.ask(self.key, self.needed)
        if answer is not None:
            fill(self.outputs, answer)


class Issued(dist.Work):
    """A call that was issued. That somebody waits for it goes on the tape."""

    def __init__(self, tape: Tape, number: int, tensors: list[Tensor], due: list[Expected] | None = None) -> None:
        super().__init__()
        self._tape = tape
        self._number = number
        self._tensors = tensors
        self._source = -1
        self._due = [] if due is None else due
        """Results of its group, oldest first: those before its own are there when its own is."""
        self._last = due[-1] if due else None

    def receives(self, source: int, due: list[Expected]) -> "Issued":
        """Make this a receive from a rank of the group, with a result of its own, and return it."""
        self._source, self._due = source, due
        self._last = due[-1] if due else None
        return self

    def wait(self, timeout: Any = None) -> bool:
        """Record that the rank waits here until the call is complete."""
        self._tape.wait(self._number)
        self._fetch()
        return True

    def _fetch(self) -> None:
        while self._last is not None and not self._last.here:
            self._due.pop(0).fetch()

    def is_completed(self) -> bool:
        """Whoever asks continues only when it is."""
        return self.wait()

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Return the tensors of the call."""
        return self._tensors

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> Any:
        """Complete. Inside backward (DDP's buckets) it is waited for when backward ends, elsewhere here."""
        future: Future[list[Tensor]] = Future()
        self._fetch()
        future.set_result(self._tensors)
        if torch._C._current_graph_task_id() == -1:
            self.wait()
        else:
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)
        return future
