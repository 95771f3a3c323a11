"""State shared in the process of a simulated rank, and the work objects of its calls. A work has placeholder values at
first; if ranks are simulated together, it receives the real ones when the rank waits for it.
"""

from collections import Counter
from collections.abc import Sequence
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
    """State that all groups of this process share while a rank is simulated."""

    def __init__(self, exchange: Exchange, world_size: int, steps: int) -> None:
        self.world_size = world_size
        self.steps = steps
        """Number of steps to run; 0 runs until the rank ends."""
        self.step = -1
        """Step in progress, counted from 1; -1 before the first."""
        self.rounds = 0
        """Number of steps so far; see `Record`."""
        self.joined = False
        """Whether it has created its default group."""
        self.tape = Tape()
        self.log = CollectiveLog(self.tape)  # type: ignore[arg-type]
        self.exchange = exchange
        self.new_groups: list[tuple[tuple[int, ...], str]] = []
        """Ranks and description of every group created after the default one."""
        self.expected: dict[Key, list[Expected]] = {}
        """Group -> results that have not arrived yet, in call order."""
        self._counts: Counter[Key] = Counter()
        """Number of sends and receives so far, by direction."""

    def send(self, group: str, receiver: int, tag: int, tensors: Sequence[Tensor]) -> None:
        """Offer values to a receive."""
        rank = self.exchange.rank
        key = self._numbered((group, rank, receiver, tag))
        if self.exchange.carries("root", tensors):
            ends, dtypes = (rank, receiver), dtypes_of(tensors)
            self.exchange.offer(Offer(key, rank, ends, (), "root", "", rank, 1, dtypes, packed(tensors)))

    def receive(self, group: str, sender: int, tag: int, tensors: Sequence[Tensor]) -> list["Expected"]:
        """Return the expected values of a matching send, if it reaches this rank."""
        key = self._numbered((group, sender, self.exchange.rank, tag))
        carried = self.exchange.carries("root", tensors)
        return [Expected(self.exchange, key, (sender,), tensors)] if carried else []

    def _numbered(self, way: Key) -> Key:
        self._counts[way] += 1
        return (*way, self._counts[way])


current: SimulatedRank | None = None  # The rank that is simulated in this process.


@dataclass(slots=True, eq=False)
class Expected:
    """A result that is requested when the rank waits."""

    exchange: Exchange
    key: Key
    needed: tuple[int, ...]
    outputs: Sequence[Tensor]
    fetched: bool = False

    def fetch(self) -> None:
        """Request the values and copy them into the outputs."""
        self.fetched = True
        answer = self.exchange.ask(self.key, self.needed)
        if answer is not None:
            fill(self.outputs, answer)


class Issued(dist.Work):
    """An issued call, which records on the tape when the rank waits for it."""

    def __init__(self, tape: Tape, number: int, tensors: list[Tensor], due: list[Expected] | None = None) -> None:
        super().__init__()
        self._tape = tape
        self._number = number
        self._tensors = tensors
        self._source = -1
        self._due = [] if due is None else due
        """Results of its group, oldest first: earlier ones are fetched before its own."""
        self._last = due[-1] if due else None

    def receives(self, source: int, due: list[Expected]) -> "Issued":
        """Make this a receive from a rank of the group, with a separate result, and return it."""
        self._source, self._due = source, due
        self._last = due[-1] if due else None
        return self

    def wait(self, timeout: Any = None) -> bool:
        """Record that the rank waits here until the call is complete."""
        self._tape.wait(self._number)
        self._fetch()
        return True

    def _fetch(self) -> None:
        while self._last is not None and not self._last.fetched:
            self._due.pop(0).fetch()

    def is_completed(self) -> bool:
        """Return True after waiting, as code that polls continues only then."""
        return self.wait()

    def synchronize(self) -> None:
        """Do the same as `wait`."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Return the tensors of the call."""
        return self._tensors

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> Any:
        """Return a completed future; `wait` is called immediately, or inside backward (DDP's buckets) at its end."""
        future: Future[list[Tensor]] = Future()
        self._fetch()
        future.set_result(self._tensors)
        if torch._C._current_graph_task_id() == -1:
            self.wait()
        else:
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)
        return future
