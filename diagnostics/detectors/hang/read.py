"""Which files to read for each rank, and the pass over them; loads a rank again for those that need a closer look.

One rank's dumps are in memory at a time. Where two files tell of the same recorder the younger one counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from diagnostics.detectors.hang.align import Survey
from diagnostics.evidence.calls import Call, Dump, GroupKey, settle
from diagnostics.evidence.model import Evidence, Problem


class CallFile(Protocol):
    """A handle on one rank's calls: a flight dump, a black box or a ring."""

    @property
    def file(self) -> str:
        """Relative to the evidence's root."""
        ...

    @property
    def rank(self) -> int | None:
        """As its name says."""
        ...

    def load(self) -> list[Dump]:
        """The dumps in it; raises OSError or ValueError."""
        ...


@dataclass(slots=True)
class Reading:
    """The survey, and the way back to a rank's own calls."""

    survey: Survey = field(default_factory=Survey)
    files: dict[int, list[CallFile]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    attempt: int | None = None

    def calls(self, rank: int, key: GroupKey) -> list[Call]:
        """One rank's collectives in one group, oldest first, with stacks. Reads its files again."""
        for dump in choose(self._load(rank, []), self.attempt):
            if dump.recorder == key.recorder or any(call.key == key for call in dump.calls):
                found = [settle(call) for call in dump.calls if call.key == key and not call.p2p]
                if found:
                    return sorted(found, key=lambda call: call.seq)
        return []

    def _load(self, rank: int, problems: list[Problem]) -> list[Dump]:
        dumps = []
        for file in self.files.get(rank, []):
            try:
                dumps.extend(file.load())
            except (OSError, ValueError) as problem:
                problems.append(Problem("flight", file.file, str(problem) or type(problem).__name__))
        return dumps


def read(evidence: Evidence) -> Reading:
    """Survey all dumps and rings, rank by rank."""
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
    for rank in sorted(reading.files):
        dumps = reading._load(rank, reading.problems)
        _damage(dumps, reading.problems)
        if dumps:
            reading.survey.add(rank, choose(dumps, reading.attempt))
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


def _damage(dumps: Iterable[Dump], problems: list[Problem]) -> None:
    problems.extend(
        Problem("flight", dump.file, f"{dump.damaged} entries could not be understood")
        for dump in dumps
        if dump.damaged
    )


def choose(dumps: list[Dump], attempt: int | None) -> list[Dump]:
    """One dump for each recorder: of the last attempt, a full dump before a black box, the younger one first."""
    best: dict[str, tuple[tuple[object, ...], Dump]] = {}
    empty = []
    for dump in dumps:
        if attempt is not None and dump.attempt is not None and dump.attempt != attempt:
            continue
        if not dump.calls and not dump.counters:
            empty.append(dump)
            continue
        with_stacks = any(call.frames or call.stack for call in dump.calls[:8])
        worth = (not dump.black_box, dump.last_s(), with_stacks, len(dump.calls))
        if dump.recorder not in best or worth > best[dump.recorder][0]:
            best[dump.recorder] = (worth, dump)
    chosen = [best[recorder][1] for recorder in sorted(best)]
    return chosen or sorted(empty, key=lambda dump: dump.black_box)[:1]
