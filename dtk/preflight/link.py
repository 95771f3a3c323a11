"""Values that simulated ranks exchange while all of them are under way: a rank's end of the line.

A rank offers what it brings to a call and asks for what comes of it once it waits; a table in the parent process puts
the offers of all members together (`dtk.preflight.results`). Knows tensors and bytes, no process group.
"""

import pickle
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

MAX_BYTES = 1 << 28
"""Larger tensors are data, not decisions; they stay made up."""
ADRIFT_S = 10.0
"""A rank goes on for so long at most with made-up values, once the ranks stand."""
ASK, OFFER, END = b"a", b"o", b"e"
"""First byte of each message."""
Key = tuple[object, ...]
How = Literal["reduce", "reduce_mine", "root", "root_mine", "all", "mine"]
"""What comes of the offers: reduced over the members, what the root brings, what all bring. `mine`: of it, the part
that is for the member who asks."""


class Offer(NamedTuple):
    """What one rank brings to a call."""

    key: Key
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
    parts: tuple[bytes, ...] | None
    """None: without values."""


@dataclass(slots=True)
class Share:
    """A call's values on this rank: what it brings, where the result goes."""

    how: How
    inputs: tuple[bytes, ...] | None
    dtypes: tuple[str, ...]
    outputs: list[Tensor]
    takers: int
    """How many members get something."""
    takes: bool = True
    """Whether this one does."""
    reduce_op: str = ""
    root: int = -1
    """Global rank of the only giver; -1 = all give."""


class Link:
    """A rank's connection to the table."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.adrift = False
        """The ranks stand: from here on values are made up."""
        self.made_up = False
        """Whether a result was made up before that, as it was too large."""

    def offer(self, offer: Offer) -> None:
        """Leave it; nobody answers."""
        if not self.adrift:
            self.pipe.send_bytes(OFFER + pickle.dumps(tuple(offer)))

    def ask(self, key: Key, needed: tuple[int, ...]) -> tuple[bytes, ...] | None:
        """What comes of a call, as soon as the ranks `needed` have brought their share; None = not to be known.

        The clock of this rank stands meanwhile.
        """
        if self.adrift:
            return None
        left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        self.pipe.send_bytes(ASK + pickle.dumps((key, needed)))
        adrift, answer = pickle.loads(self.pipe.recv_bytes())  # noqa: S301  From our own parent.
        self.adrift = adrift
        signal.setitimer(signal.ITIMER_REAL, min(left_s, ADRIFT_S) if adrift and left_s else left_s)
        self.made_up |= answer is None and not adrift
        found: tuple[bytes, ...] | None = answer
        return found


def packed(tensors: Sequence[Tensor]) -> tuple[bytes, ...] | None:
    """The values of tensors; None when they have none that could be sent."""
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


def to_bytes(tensor: Tensor) -> bytes:
    """Its values."""
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def from_bytes(value: bytes, dtype: torch.dtype) -> Tensor:
    """As one dimension; not empty."""
    return torch.frombuffer(bytearray(value), dtype=dtype)
