"""Reads the files of all ranks once, and those of a single rank again if details are needed."""

from collections.abc import Iterable

from msgspec import Struct, field

from diagnostics.analysis.histories import pool
from diagnostics.analysis.histories.align import Survey, move
from diagnostics.analysis.histories.one_rank import choose, load
from diagnostics.evidence.calls import Call, CallFile, GroupKey, call_files, settle
from diagnostics.evidence.model import Evidence, Problem


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
    for file in nameless:
        try:
            rank = next((dump.rank for dump in file.load() if dump.rank is not None), None)
        except (OSError, ValueError) as problem:
            reading.problems.append(Problem("flight", file.file, str(problem), unread=True))
            continue
        if rank is None:
            reading.problems.append(Problem("flight", file.file, "no_rank"))
        else:
            reading.files.setdefault(rank, []).append(file)
    reading.survey.world_size = evidence.world_size
    for digest in pool.digests(reading.files, reading.attempt, workers):
        reading.problems += digest.problems
        reading.survey.take(digest)
    reading.survey.close()
    survey = reading.survey
    for ahead_s, ranks in () if evidence.doubt else survey.clocks.far_off():
        about, first = "clock_ahead" if ahead_s > 0 else "clock_behind", survey.ranks[ranks[0]].files[0]
        figures = {"ranks": ranks, "apart_s": abs(ahead_s), "first": min(survey.ranks)}
        reading.problems.append(Problem("flight", first, about, harmless=True, figures=figures))
    return reading
