"""One process that loads files of ranks: `python -m diagnostics.analysis.histories.worker`, started by `pool`.
Reads its work from standard input, and writes one digest after another to standard output, each behind its length.
"""

import gc
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from diagnostics.analysis.histories.one_rank import digest
from diagnostics.evidence.budget import budget, disk_bytes
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.ring import RingFile

LENGTH = 8  # Bytes of the length before each digest; a length of 0 = this rank cannot be put into msgpack.


class JobFile(Struct, frozen=True):
    """One file of a rank."""

    ring: bool
    path: str
    file: str
    rank: int | None


class Work(Struct, frozen=True):
    """All that one worker does."""

    limits: Limits
    attempt: int | None
    jobs: list[tuple[int, list[JobFile]]]
    """(rank, its files)."""


def main() -> None:
    """Do the work."""
    gc.disable()  # Dumps are millions of plain values without cycles: counting frees them.
    work = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Work)
    for rank, listed in work.jobs:
        types = ((RingFile if file.ring else FlightFile, file) for file in listed)
        files = [type_(Path(file.path), file.file, file.rank, work.limits) for type_, file in types]
        try:
            with budget(work.limits, sum(disk_bytes(file.path) for file in files)):
                data = msgspec.msgpack.encode(digest(rank, files, work.attempt))
        except (OverflowError, ValueError, TypeError):  # A number beyond 64 bits, a text that is no Unicode.
            data = b""
        sys.stdout.buffer.write(len(data).to_bytes(LENGTH, "little") + data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
