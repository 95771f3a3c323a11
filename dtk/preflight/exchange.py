"""Values that one simulated rank hands to another: sizes, flags, objects, and where not-a-number spreads.

Where ranks are simulated one after another, a rank gets what ranks before it sent. What would come from a later one is
noted, so that this rank can be simulated again after that one. Only small whole-number tensors travel, from one rank to
another. Where all are simulated together, true values come over the `link` instead.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dtk.preflight.link import Key, Link, to_bytes

MAX_BYTES = 1 << 20
"""Larger tensors are data, not decisions."""


@dataclass(slots=True)
class Exchange:
    """What this rank gets from ranks before it, and what it leaves for ranks after it."""

    rank: int
    known: dict[Key, bytes] = field(default_factory=dict)
    """From ranks that were simulated before."""
    done: frozenset[int] = frozenset()
    """Those of them that need not be simulated again."""
    spoiled: frozenset[tuple[str, int]] = frozenset()
    """Group and position of reductions to which another rank brought a value that is not a number."""
    given: dict[Key, bytes] = field(default_factory=dict)
    spread: set[tuple[str, int]] = field(default_factory=set)
    """Group and position of the reductions to which this rank brought one."""
    watches: bool = False
    """Whether to look for values that are not numbers; costs a pass over each tensor."""
    missed: set[int] = field(default_factory=set)
    """Ranks from which a value was needed that are not simulated yet."""
    link: Link | None = None
    """To the ranks that are simulated at the same time; None = they are simulated one after another."""
    made_up: bool = False
    """Whether a value was made up all the same, as it was too large; known at the end."""
    _counts: dict[Key, int] = field(default_factory=dict)

    def broadcast(self, key: Key, root: int, tensors: list[Tensor]) -> None:
        """The root's values: it leaves them, others take them."""
        if root == self.rank:
            self._give(key, tensors)
        else:
            self._take(key, root, tensors)

    def scatter(self, place: Key, root: int, parts: list[Tensor], outputs: list[Tensor], position: int) -> None:
        """Each rank's part of what the root has."""
        if root == self.rank:
            for number, part in enumerate(parts):
                self._give((*place, number), [part])
        else:
            self._take((*place, position), root, outputs)

    def send(self, group: str, peer: int, tag: int, tensors: list[Tensor]) -> None:
        """Leave values for a peer."""
        self._give(self._numbered((group, self.rank, peer, tag)), tensors)

    def receive(self, group: str, peer: int, tag: int, tensors: list[Tensor]) -> None:
        """Take what a peer sent."""
        self._take(self._numbered((group, peer, self.rank, tag)), peer, tensors)

    def spoil(self, place: tuple[str, int], tensors: list[Tensor]) -> None:
        """What is not a number on one rank is not a number on all, once it was reduced or gathered."""
        for tensor in tensors:
            if not _readable(tensor) or not tensor.is_floating_point() or not tensor.numel():
                continue
            if place in self.spoiled:
                tensor.detach().fill_(float("nan"))
            elif self.watches and not bool(torch.isfinite(tensor.detach()).all()):
                self.spread.add(place)

    def _numbered(self, way: Key) -> Key:
        number = self._counts[way] = self._counts.get(way, 0) + 1
        return (*way, number)

    def _give(self, key: Key, tensors: list[Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            if _decides(tensor):
                self.given[(*key, number)] = to_bytes(tensor)

    def _take(self, key: Key, source: int, tensors: list[Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            if not _decides(tensor):
                continue
            value = self.known.get((*key, number))
            if value is not None and len(value) == tensor.nbytes:
                kept = torch.frombuffer(bytearray(value), dtype=tensor.dtype) if value else tensor.detach().flatten()
                tensor.detach().copy_(kept.view(tensor.shape))
            elif source not in self.done:
                self.missed.add(source)


def _readable(tensor: Any) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta


def _decides(tensor: Tensor) -> bool:
    """Whether control flow may hang on it: a small tensor of whole numbers."""
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    return whole and _readable(tensor) and tensor.nbytes <= MAX_BYTES
