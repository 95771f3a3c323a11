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
    ordered = sorted(rings, key=lambda ring: ring.rank if ring.rank is not None else -1)
    others = [ring for ring in ordered if ring.rank != rank]
    some = others[:: max(1, -(-len(others) // PEERS))]  # Enough to tell what is usual.
    for file in (*(ring for ring in ordered if ring.rank == rank), *some):
        try:
            dump = file.read()
        except (OSError, ValueError):  # Said where the calls are read.
            continue
        if attempt is not None and dump.attempt != attempt:
            continue
        if dump.rank == rank:
            own = dump.samples
        else:
            for sample in dump.samples:
                place = (sample.file, sample.line)
                peers[place] = max(peers.get(place, 0), sample.times)
    for sample in own:
        if sample.times >= ENOUGH and peers.get((sample.file, sample.line), 0) <= PEERS_SHARE * sample.times:
            place_frame = Frame(sample.file, sample.line, sample.function)
            return place_frame, sample.times, sum(other.times for other in own)
    return None
