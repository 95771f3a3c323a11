"""Loads the files of many ranks, in several processes if worthwhile, and yields the digests in rank order."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from diagnostics.analysis.histories.one_rank import Digest, digest
from diagnostics.analysis.processes import spread, usable_cores
from diagnostics.evidence.budget import budget, disk_bytes
from diagnostics.evidence.calls import CallFile
from diagnostics.evidence.limits import uncollected
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.ring import RingFile

MAX_WORKERS = 8  # A convention: each worker holds one dump, and the results are merged in one process.
WORTH_BYTES = 128 << 20  # Starting workers takes as long as reading about this many bytes.
_Job = tuple[int, Sequence[FlightFile | RingFile], int | None]  # Rank, its files, and the attempt to read.


def digests(
    files: Mapping[int, Sequence[CallFile]], attempt: int | None, workers: int | None = None
) -> Iterator[Digest]:
    """Yield the digest of each rank's records of one attempt (None = any), in ascending order of ranks.

    None starts as many `workers` as pay; 0 or 1 starts none.
    """
    on_disk = [file for file in chain.from_iterable(files.values()) if isinstance(file, FlightFile | RingFile)]
    if len(on_disk) < sum(map(len, files.values())):  # Some files are in memory.
        yield from (digest(rank, files[rank], attempt) for rank in sorted(files))
        return
    if workers is None:  # Use all cores unless there is little to read.
        size_bytes = sum(disk_bytes(file.path) for file in on_disk)
        workers = min(usable_cores(), MAX_WORKERS, size_bytes // WORTH_BYTES + 1)
    jobs: list[_Job] = [(rank, files[rank], attempt) for rank in sorted(files)]  # type: ignore[misc]
    yield from spread(_digest, jobs, workers)


def _digest(job: _Job) -> Digest:
    """Return the digest of one rank; releases the dump, which consists of millions of plain values."""
    with uncollected(), budget(job[1][0].limits, sum(disk_bytes(file.path) for file in job[1])):
        return digest(*job)
