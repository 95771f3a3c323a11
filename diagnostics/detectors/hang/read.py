"""The pass over the files of all ranks, and the way back to a rank for those that need a closer look.

One rank's dumps are in memory at a time, in this process or in each worker. Where two files tell of the same
recorder the younger one counts.
"""

from dataclasses import dataclass, field

from diagnostics.detectors.hang import pool
from diagnostics.detectors.hang.align import Survey
from diagnostics.detectors.hang.one_rank import CallFile, choose, load
from diagnostics.evidence.calls import Call, GroupKey, settle
from diagnostics.evidence.model import Evidence, Problem


@dataclass(slots=True)
class Reading:
    """The survey, and the way back to a rank's own calls."""

    survey: Survey = field(default_factory=Survey)
    files: dict[int, list[CallFile]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    attempt: int | None = None

    def calls(self, rank: int, key: GroupKey) -> list[Call]:
        """One rank's collectives in one group, oldest first, with stacks. Reads its files again."""
        for dump in choose(load(self.files.get(rank, []), []), self.attempt):
            if dump.recorder == key.recorder or any(call.key == key for call in dump.calls):
                found = [settle(call) for call in dump.calls if call.key == key and not call.p2p]
                if found:
                    return sorted(found, key=lambda call: call.seq)
        return []


def read(evidence: Evidence, workers: int | None = None) -> Reading:
    """Survey all dumps and rings, rank by rank.

    Args:
        evidence: with the handles.
        workers: processes that load files; None = as many as pay. The result does not depend on it.
    """
    reading = Reading(attempt=evidence.run.attempt if evidence.run is not None else None)
    handles: list[CallFile] = [*evidence.flight, *evidence.rings]
    nameless = []
    for file in handles:
        if file.rank is None:
            nameless.append(file)
        else:
            reading.files.setdefault(file.rank, []).append(file)
    for file in nameless:
        _place(file, reading)
    reading.survey.world_size = evidence.world_size
    for digest in pool.digests(reading.files, reading.attempt, workers):
        reading.problems += digest.problems
        reading.survey.take(digest)
    reading.survey.close()
    return reading


def _place(file: CallFile, reading: Reading) -> None:
    """A file whose name has no rank may say it inside."""
    try:
        rank = next((dump.rank for dump in file.load() if dump.rank is not None), None)
    except (OSError, ValueError) as problem:
        reading.problems.append(Problem("flight", file.file, str(problem)))
        return
    if rank is None:
        reading.problems.append(
            Problem("flight", file.file, "neither its name nor its content says of which rank it is")
        )
    else:
        reading.files.setdefault(rank, []).append(file)
