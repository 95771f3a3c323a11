"""The state of a simulated rank, and values that ranks exchange: what code may read from the result of a collective.

Ranks that are simulated concurrently offer their inputs and ask for the result when they wait for it; the parent
combines the offers. A rank that is simulated after others gets their small integer tensors (sizes, flags, objects).
Values needed from a later rank are noted, to simulate this one again. Work objects have placeholders until the wait.
"""

import pickle
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dtk.preflight.calls import Tape
from dtk.record.collectives import CollectiveLog
from dtk.simulate.mirror import How

MAX_BYTES = 1 << 28  # Larger tensors are treated as data that decides nothing; their values stay placeholders.
MAX_BYTES_KEPT = 1 << 20  # The same limit if ranks are simulated in sequence, as all offers are then kept.
ADRIFT_S = 10.0
"""Maximum time for which a rank continues with placeholder values once no rank can continue without them."""
ASK, OFFER, END = b"a", b"o", b"e"  # First byte of each message to the parent.
Key = tuple[object, ...]
Values = tuple[bytes, ...]


class Offer(NamedTuple):
    """Input of one rank to a call."""

    key: Key
    """Key of the call, equal on all members."""
    rank: int
    members: tuple[int, ...]
    """Global ranks of the members, by rank in the group."""
    agreed: tuple[object, ...]
    """What must be equal on all members: simulated ranks know every part, so `!=` says what `identity.agree` says."""
    how: How
    reduce_op: str
    root: int
    """Global rank of the only giver; -1 if all give."""
    takers: int
    """Number of members that get a result."""
    dtypes: tuple[str, ...]
    parts: Values | None
    """Values of the parts; None if there are no values."""


@dataclass(slots=True)
class Exchange:
    """One rank's end of the exchange."""

    rank: int
    offers: dict[Key, Offer] = field(default_factory=dict)
    """Offers of ranks that were simulated before."""
    done: frozenset[int] = frozenset()
    """Those of them that need not be simulated again."""
    spoiled: frozenset[Key] = frozenset()
    """Group and position of reductions to which another rank contributed NaN or infinity."""
    watches: bool = False
    """Whether to look for NaN and infinity, which costs a pass over each tensor."""
    given: dict[Key, Offer] = field(default_factory=dict)
    spread: set[Key] = field(default_factory=set)
    """Group and position of the reductions to which this rank contributed NaN or infinity."""
    missed: set[int] = field(default_factory=set)
    """Ranks whose values were needed before they were simulated."""
    pipe: Connection | None = None
    """Connection to the parent if all ranks are simulated concurrently; None if in sequence."""
    adrift: bool = False
    """Whether no rank can continue, so that placeholder values are used from now on."""
    made_up: bool = False
    """Whether a result that code may have read was a placeholder before that."""

    @property
    def live(self) -> bool:
        """Whether all ranks are simulated concurrently."""
        return self.pipe is not None

    def carries(self, how: How, tensors: Sequence[Tensor]) -> bool:
        """Return whether the values of such a call reach other ranks."""
        if self.live:
            return True
        return how.startswith("root") and all(
            readable(t) and not t.is_floating_point() and not t.is_complex() and t.nbytes <= MAX_BYTES_KEPT
            for t in tensors
        )

    def offer(self, offer: Offer) -> None:
        """Leave this rank's input without waiting for an answer."""
        if self.pipe is None:
            if offer.parts:
                self.given[offer.key] = offer
        elif not self.adrift:
            self.pipe.send_bytes(OFFER + pickle.dumps(tuple(offer)))

    def ask(self, key: Key, needed: tuple[int, ...]) -> Values | None:
        """Return a call's result once the ranks `needed` made offers, None if unknown; its time limit is paused."""
        if self.pipe is None:
            offer = self.offers.get(key)
            if offer is None:
                self.missed.update({*needed} - self.done)
            return None if offer is None else part_of(offer, self.rank)
        if self.adrift:
            return None
        left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        self.pipe.send_bytes(ASK + pickle.dumps((key, needed)))
        adrift, answer = pickle.loads(self.pipe.recv_bytes())  # noqa: S301  From our own parent.
        self.adrift = adrift
        signal.setitimer(signal.ITIMER_REAL, min(left_s, ADRIFT_S) if adrift and left_s else left_s)
        self.made_up |= answer is None and not adrift
        values: Values | None = answer
        return values

    def spoil(self, place: Key, tensors: Sequence[Tensor]) -> None:
        """Propagate NaN over the ranks of a call: note non-finite tensors, and fill those of spoiled calls."""
        for tensor in tensors:
            if not readable(tensor) or not tensor.is_floating_point() or not tensor.numel():
                continue
            if place in self.spoiled:
                tensor.detach().fill_(float("nan"))
            elif self.watches and not bool(torch.isfinite(tensor.detach()).all()):
                self.spread.add(place)


def part_of(offer: Offer, rank: int) -> Values | None:
    """Return the part of a single giver's offer that is for one member."""
    if offer.parts is None or not offer.how.endswith("mine"):
        return offer.parts
    return part(offer.parts, offer.members.index(rank), len(offer.members))


def part(parts: Values, place: int, count: int) -> Values:
    """Return one member's parts from the concatenated parts of all members."""
    each = len(parts) // count
    return parts[place * each : (place + 1) * each]


def packed(tensors: Sequence[Tensor]) -> Values | None:
    """Return the values of tensors; None if they have none that can be sent."""
    if not all(readable(tensor) for tensor in tensors) or sum(tensor.nbytes for tensor in tensors) > MAX_BYTES:
        return None
    return tuple(to_bytes(tensor) for tensor in tensors)


def fill(outputs: Sequence[Tensor], answer: Sequence[bytes]) -> None:
    """Copy values into the outputs; tensors of another size are skipped, as the matcher reports them."""
    for output, value in zip(outputs, answer, strict=False):
        if value and readable(output) and len(value) == output.nbytes:
            output.data.copy_(from_bytes(value, output.dtype).view(output.shape))


def readable(tensor: Any) -> bool:
    """Return whether it is an ordinary tensor with values."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta
    return plain and tensor.layout is torch.strided and tensor.device.type == "cpu"


def dtypes_of(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the names of the tensors' dtypes: `float32`."""
    return tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)


def to_bytes(tensor: Tensor) -> bytes:
    """Return the tensor's values as bytes."""
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def from_bytes(value: bytes, dtype: torch.dtype) -> Tensor:
    """Return the values as a one-dimensional tensor; `value` must not be empty."""
    return torch.frombuffer(bytearray(value), dtype=dtype)


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
