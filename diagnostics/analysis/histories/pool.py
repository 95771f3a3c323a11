"""Loads the files of many ranks in several processes (`worker`), and gives the digests in the order of the ranks.
Whatever goes wrong with a process is made up for here, so the result is the same with any number of them.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from typing import IO

import msgspec

from diagnostics.analysis.histories.one_rank import Digest, digest
from diagnostics.analysis.histories.worker import LENGTH, JobFile, Work
from diagnostics.evidence.calls import CallFile
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.ring import RingFile

MAX_WORKERS = 8  # A convention: each holds one dump, and the results are merged in one process.
WORTH_BYTES = 128 << 20  # Starting workers costs as long as reading about this much.
_DECODER = msgspec.msgpack.Decoder(Digest)


def digests(
    files: Mapping[int, Sequence[CallFile]], attempt: int | None, workers: int | None = None
) -> Iterator[Digest]:
    """Yield the digest of each rank's records, in ascending order of ranks.

    Args:
        files: rank -> its files.
        attempt: of the run whose records count; None = any.
        workers: processes to start; None = as many as pay, 0 or 1 = none.
    """
    ranks = sorted(files)
    if workers is None:  # As many as pay: cores, unless there is little to read.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        size = 0
        for file in chain.from_iterable(files.values()):
            with suppress(OSError):
                size += file.path.stat().st_size if isinstance(file, FlightFile | RingFile) else 0
        workers = min(cores, MAX_WORKERS, size // WORTH_BYTES + 1)
    count = min(workers, len(ranks))
    jobs = [(rank, listed) for rank in ranks if count > 1 and (listed := _listed(files[rank]))]
    if len(jobs) < len(ranks) or not jobs:
        yield from (digest(rank, files[rank], attempt) for rank in ranks)
        return
    with ExitStack() as stack:
        pipes = [_start(stack, jobs[n::count], files[ranks[0]], attempt) for n in range(count)]
        for number, rank in enumerate(ranks):
            answer = _next(pipes, number % count)
            yield answer if answer is not None else digest(rank, files[rank], attempt)


def _listed(files: Sequence[CallFile]) -> list[JobFile]:
    """Return a rank's files for a worker; nothing if one is of another type and must be read in this process."""
    ours = (file for file in files if isinstance(file, FlightFile | RingFile))
    listed = [JobFile(isinstance(file, RingFile), str(file.path.absolute()), file.file, file.rank) for file in ours]
    return listed if len(listed) == len(files) else []


def _start(
    stack: ExitStack, jobs: list[tuple[int, list[JobFile]]], files: Sequence[CallFile], attempt: int | None
) -> IO[bytes] | None:
    """Start a worker with its jobs. Return the stream of its answers, or None if it cannot be started."""
    import subprocess  # Here, as only large dumps are worth a process.

    path = os.pathsep.join(entry for entry in sys.path if entry)
    limits = next(file.limits for file in files if isinstance(file, FlightFile | RingFile))
    command, env = [sys.executable, "-m", "diagnostics.analysis.histories.worker"], {**os.environ, "PYTHONPATH": path}
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, env=env))
        stack.callback(process.kill)
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError), process.stdin as work:
            work.write(msgspec.msgpack.encode(Work(limits, attempt, jobs)))
    except OSError:
        return None
    return process.stdout


def _next(pipes: list[IO[bytes] | None], number: int) -> Digest | None:
    """Return the worker's next answer, or None if it has none or has ended."""
    if (pipe := pipes[number]) is None:
        return None
    head = pipe.read(LENGTH)
    size = int.from_bytes(head, "little")
    data = pipe.read(size) if len(head) == LENGTH else b""
    if len(head) < LENGTH or len(data) < size:
        pipes[number] = None
        return None
    return _DECODER.decode(data) if data else None
