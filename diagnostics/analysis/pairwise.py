"""Compares what ranks send and what their peers expect, pair by pair: splits of an all_to_all, messages of a pipeline.
The preflight compares its simulated calls in the same way (`misfits`).

`divergence` compares calls that all ranks have to make alike, and decides who differs by the majority. Here the two
sides need not be alike but fit each other, which is no part of what makes two calls the same (`divergence.identity`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from diagnostics.analysis.layout import layout
from diagnostics.contract.mesh import Mesh
from diagnostics.evidence.calls import SIMULATED
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.reader import loaded
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import RingRecord

Records = Mapping[int, tuple[RingRecord, ...]]  # Rank -> its last calls, oldest first.


C = TypeVar("C")


class Misfit(Struct, Generic[C], frozen=True):
    """A pair of ranks of which one does not expect what the other sends."""

    sender: int
    receiver: int
    sent: int
    """Number of rows, of bytes, of elements of a message, or of messages of a step."""
    expected: int
    calls: tuple[C, C]
    """The calls of the sender and of the receiver, or their numbers."""


Sides = Mapping[int, tuple[Sequence[int], Sequence[int], C]]
"""Rank -> what it sends to each member of its group, what it expects of each, and its call. One number stands for all
members, none for 0."""


def misfits(sides: Sides[C], members: Sequence[int], root: int | None = None) -> Iterator[Misfit[C]]:
    """Yield the pairs of ranks that do not fit each other; with a `root`, only this place sends or receives."""
    places = {rank: place for place, rank in enumerate(members)}
    for sender, (sent, _, call) in sides.items():
        for receiver, (_, expected, other) in sides.items():
            gives, gets = _share(sent, places[receiver]), _share(expected, places[sender])
            if gives != gets and root in (None, places[sender], places[receiver]):
                yield Misfit(sender, receiver, gives, gets, (call, other))


def _share(sizes: Sequence[int], place: int) -> int:
    return sizes[place] if len(sizes) > 1 else sizes[0] if sizes else 0


class Case(Struct, frozen=True):
    """The earliest misfits and the ranks that caused them."""

    misfits: tuple[Misfit[RingRecord], ...]
    culprits: tuple[int, ...]
    """Ranks at fault; all of them if neither side can be identified as wrong."""
    group: tuple[int, ...]
    shapes: bool = True
    """Whether the messages of a pipeline differ in size rather than in number."""

    @property
    def victims(self) -> tuple[int, ...]:
        """The other ranks of the group."""
        return tuple(rank for rank in self.group if rank not in self.culprits)


class Pairs(Struct, frozen=True):
    """Calls of all ranks that can be compared pair by pair."""

    evidence: Evidence
    layout: Mesh | None
    records: Records
    files: Mapping[int, str]
    """Rank -> its ring file."""


def pairs(evidence: Evidence) -> Pairs:
    """Read all rings; a damaged one is omitted and reported under coverage."""
    records: dict[int, tuple[RingRecord, ...]] = {}
    files: dict[int, str] = {}
    rings = [*evidence.handles(RingFile), *evidence.files.get(SIMULATED, ())]
    for file, ring in loaded(rings, lambda file: file.read()):
        if ring.records and (evidence.run is None or ring.attempt == evidence.run.attempt):
            records[ring.rank], files[ring.rank] = ring.records, file.file
    return Pairs(evidence, layout(evidence), records, files)
