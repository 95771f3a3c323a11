"""Values that simulated ranks exchange: what code may read of the result of a collective or a receive.

Of ranks that are simulated at the same time a rank offers what it brings, asks for the result once it waits, and the
parent puts the offers together. Of ranks one after another it gets what earlier ones gave: small tensors of whole
numbers (sizes, flags, objects). What would come from a later rank is noted, so that it can be simulated again.
"""

import pickle
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

MAX_BYTES = 1 << 28
"""Larger tensors are data, not decisions; they stay made up."""
MAX_BYTES_KEPT = 1 << 20
"""The same where ranks are simulated one after another, and all that they gave is kept."""
ADRIFT_S = 10.0
"""How long a rank continues with placeholder values at most, once no rank can continue without them."""
ASK, OFFER, END = b"a", b"o", b"e"
"""First byte of each message to the parent."""
Key = tuple[object, ...]
How = Literal["reduce", "reduce_mine", "root", "root_mine", "all", "mine"]
"""What comes of the offers: reduced over the members, what the root brings, what all bring. `mine`: of it, the part
that is for the member who asks."""
Values = tuple[bytes, ...]


class Offer(NamedTuple):
    """What one rank brings to a call."""

    key: Key
    """Of the call; the same on all members."""
    rank: int
    members: tuple[int, ...]
    """Global ranks of those who take part, by rank in the group."""
    agreed: tuple[object, ...]
    """What must be the same on all members."""
    how: How
    reduce_op: str
    root: int
    """Global rank of the only giver; -1 = all give."""
    takers: int
    """How many members get something."""
    dtypes: tuple[str, ...]
    """Of the parts."""
    parts: Values | None
    """None: without values."""


@dataclass(slots=True)
class Exchange:
    """One rank's end of the exchange."""

    rank: int
    offers: dict[Key, Offer] = field(default_factory=dict)
    """From ranks that were simulated before."""
    done: frozenset[int] = frozenset()
    """Those of them that need not be simulated again."""
    spoiled: frozenset[Key] = frozenset()
    """Group and position of reductions to which another rank brought a value that is not a number."""
    watches: bool = False
    """Whether to look for values that are not numbers; costs a pass over each tensor."""
    given: dict[Key, Offer] = field(default_factory=dict)
    spread: set[Key] = field(default_factory=set)
    """Group and position of the reductions to which this rank brought a value that is not a number."""
    missed: set[int] = field(default_factory=set)
    """Ranks from which a value was needed that are not simulated yet."""
    pipe: Connection | None = None
    """To the parent, where all ranks are simulated at the same time; None = one after another."""
    adrift: bool = False
    """No rank can continue: from here on values are made up."""
    made_up: bool = False
    """Whether a result that code may have read was made up before that."""

    @property
    def live(self) -> bool:
        """Whether all ranks are simulated at the same time."""
        return self.pipe is not None

    def carries(self, how: How, tensors: Sequence[Tensor]) -> bool:
        """Whether the values of such a call reach other ranks."""
        if self.live:
            return True
        return how.startswith("root") and all(
            readable(t) and not t.is_floating_point() and not t.is_complex() and t.nbytes <= MAX_BYTES_KEPT
            for t in tensors
        )

    def offer(self, offer: Offer) -> None:
        """Leave what this rank brings; nobody answers."""
        if self.pipe is None:
            if offer.parts:
                self.given[offer.key] = offer
        elif not self.adrift:
            self.pipe.send_bytes(OFFER + pickle.dumps(tuple(offer)))

    def ask(self, key: Key, needed: tuple[int, ...]) -> Values | None:
        """Return what comes of a call, as soon as the ranks `needed` have brought their shares; None = not known.

        The clock of this rank stands meanwhile.
        """
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
        """Spread NaN over the ranks of a call: note tensors that are not finite, and fill those of spoiled calls."""
        for tensor in tensors:
            if not readable(tensor) or not tensor.is_floating_point() or not tensor.numel():
                continue
            if place in self.spoiled:
                tensor.detach().fill_(float("nan"))
            elif self.watches and not bool(torch.isfinite(tensor.detach()).all()):
                self.spread.add(place)


def part_of(offer: Offer, rank: int) -> Values | None:
    """Return what one member gets of a single giver's offer."""
    if offer.parts is None or not offer.how.endswith("mine"):
        return offer.parts
    return part(offer.parts, offer.members.index(rank), len(offer.members))


def part(parts: Values, place: int, count: int) -> Values:
    """Return one member's parts, of parts for all members one after another."""
    each = len(parts) // count
    return parts[place * each : (place + 1) * each]


def packed(tensors: Sequence[Tensor]) -> Values | None:
    """Return the values of tensors; None when they have none that could be sent."""
    if not all(readable(tensor) for tensor in tensors) or sum(tensor.nbytes for tensor in tensors) > MAX_BYTES:
        return None
    return tuple(to_bytes(tensor) for tensor in tensors)


def fill(outputs: Sequence[Tensor], answer: Sequence[bytes]) -> None:
    """Put values in their places; what does not fit is left alone, as the matcher will say so."""
    for output, value in zip(outputs, answer, strict=False):
        if value and readable(output) and len(value) == output.nbytes:
            output.data.copy_(from_bytes(value, output.dtype).view(output.shape))


def readable(tensor: Any) -> bool:
    """Whether it is an ordinary tensor with values."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta
    return plain and tensor.layout is torch.strided and tensor.device.type == "cpu"


def dtypes_of(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the names of their dtypes: `float32`."""
    return tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)


def to_bytes(tensor: Tensor) -> bytes:
    """Return its values."""
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def from_bytes(value: bytes, dtype: torch.dtype) -> Tensor:
    """Return values as a tensor of one dimension; not empty."""
    return torch.frombuffer(bytearray(value), dtype=dtype)
