"""Where a rank that its peers wait for spends its time, by the looks at its main thread that its ring kept."""

from collections.abc import Iterable

from diagnostics.evidence.model import Frame
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import RingSample

ENOUGH = 5
"""Looks that make a place: half a second there."""
PEERS = 15
"""Read for comparison, spread over all."""
PEERS_SHARE = 0.5
"""A place where a peer is at least this often is where everybody spends time."""


def stands_out(rings: Iterable[RingFile], rank: int, attempt: int | None) -> tuple[Frame, int, int] | None:
    """Return the line that a rank was seen on more often than its peers, how often, and in how many samples.

    Args:
        rings: of all ranks.
        rank: of interest.
        attempt: of the run; None = whichever.
    """
    own: tuple[RingSample, ...] = ()
    peers: dict[tuple[str, int], int] = {}
    for file in _some(sorted(rings, key=lambda one: one.rank if one.rank is not None else -1), rank):
        try:
            dump = file.read()
        except (OSError, ValueError):  # Said where the calls are read.
            continue
        if attempt is not None and dump.attempt != attempt:
            continue
        if dump.rank == rank:
            own = dump.samples
        else:
            for one in dump.samples:
                place = (one.file, one.line)
                peers[place] = max(peers.get(place, 0), one.times)
    for one in own:
        if one.times >= ENOUGH and peers.get((one.file, one.line), 0) <= PEERS_SHARE * one.times:
            return Frame(one.file, one.line, one.function), one.times, sum(each.times for each in own)
    return None


def _some(rings: list[RingFile], rank: int) -> list[RingFile]:
    """Return the rings of the rank, and enough others to tell what is usual."""
    others = [one for one in rings if one.rank != rank]
    return [*(one for one in rings if one.rank == rank), *others[:: max(1, -(-len(others) // PEERS))]]
