"""Reads the files of all ranks once, in several processes if worthwhile, and those of a single rank again if details
are needed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct, field

from diagnostics.analysis.histories.align import REPORTED_S, Survey, move
from diagnostics.analysis.histories.one_rank import Digest, choose, digest, load
from diagnostics.analysis.processes import spread, usable_cores
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.budget import budget, disk_bytes
from diagnostics.evidence.calls import Call, CallFile, GroupKey, settle
from diagnostics.evidence.dump_agreement import why
from diagnostics.evidence.job.registry import call_files
from diagnostics.evidence.limits import uncollected
from diagnostics.evidence.model import Evidence, Problem
from diagnostics.evidence.reader import loaded
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.ring import RingFile

MAX_WORKERS = 8  # A convention: each worker holds one dump, and the results are merged in one process.
WORTH_BYTES = 128 << 20  # Starting workers takes as long as reading about this many bytes.
_Job = tuple[int, Sequence[FlightFile | RingFile], int | None]  # Rank, its files, and the attempt to read.


class Reading(Struct):
    """The survey, and access to the calls of single ranks."""

    survey: Survey = field(default_factory=Survey)
    files: dict[int, list[CallFile]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    attempt: int | None = None

    def calls(self, rank: int, key: GroupKey, *, messages: bool = False) -> list[Call]:
        """Return one rank's collectives in one group, or its messages, oldest first, with stacks, from its files."""
        for dump in choose(load(self.files.get(rank, []), []), self.attempt):
            if dump.recorder == key.recorder or any(call.key == key for call in dump.calls):
                chosen = (call for call in dump.calls if call.key == key and bool(call.p2p) == messages)
                if calls := self._settled(rank, chosen):
                    return sorted(calls, key=lambda call: call.seq)
        return []

    def history(self, rank: int, recorder: str) -> list[Call]:
        """Return one rank's calls of all groups by one recorder, in the order made, with stacks, from its files."""
        dumps = choose(load(self.files.get(rank, []), []), self.attempt)
        return self._settled(rank, (call for dump in dumps if dump.recorder == recorder for call in dump.calls))

    def _settled(self, rank: int, calls: Iterable[Call]) -> list[Call]:
        settled = [settle(call) for call in calls]
        for call in settled:
            move(call, self.survey.clocks.ahead_s.get(rank, 0.0))
        return settled


def read(evidence: Evidence, workers: int | None = None) -> Reading:
    """Survey all dumps and rings, rank by rank; the result does not depend on how many `workers` load files."""
    reading = Reading(attempt=evidence.run.attempt if evidence.run is not None else None)
    nameless = []
    for file in call_files(evidence):
        if file.rank is None:
            nameless.append(file)
        else:
            reading.files.setdefault(file.rank, []).append(file)
    for file, dumps in loaded(nameless, lambda file: file.load(), reading.problems, "flight"):
        rank = next((dump.rank for dump in dumps if dump.rank is not None), None)
        if rank is None:
            reading.problems.append(Problem("flight", file.file, "no_rank"))
        else:
            reading.files.setdefault(rank, []).append(file)
    noted: list[Problem] = []
    while True:
        survey, problems = Survey(), list[Problem]()
        survey.world_size = evidence.world_size
        for of_rank in digests(reading.files, reading.attempt, workers):
            problems += of_rank.problems
            survey.take(of_rank)
        apart, is_clear = survey.apart() if evidence.run is None and not noted else ({}, False)
        figures = {"ranks": tuple(apart), "apart_s": min(map(abs, apart.values()), default=0.0)}
        if not is_clear:
            break
        row = "older_dumps" if min(apart.values()) > 0 else "other_dumps"
        noted = [Problem("flight", survey.ranks[min(apart)].files[0], row, figures=figures)]
        reading.files = {rank: files for rank, files in reading.files.items() if rank not in apart}
    evidence.doubt = why("apart", **figures) if apart else evidence.doubt
    reading.survey, reading.problems = survey, reading.problems + problems + noted
    survey.close()
    off = {} if evidence.doubt else {rank: at for rank, at in survey.clocks.ahead_s.items() if abs(at) > REPORTED_S}
    for ranks in grouped((round(off[rank]), rank) for rank in sorted(off)).values():
        ahead_s = off[ranks[0]]
        about, first = "clock_ahead" if ahead_s > 0 else "clock_behind", survey.ranks[ranks[0]].files[0]
        figures = {"ranks": ranks, "apart_s": abs(ahead_s), "first": min(survey.ranks)}
        reading.problems.append(Problem("flight", first, about, harmless=True, figures=figures))
    return reading


def digests(
    files: Mapping[int, Sequence[CallFile]], attempt: int | None, workers: int | None = None
) -> Iterator[Digest]:
    """Yield each rank's digest of one attempt (None = any) in order; None starts as many `workers` as pay, 0 none."""
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
