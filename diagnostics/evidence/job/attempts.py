"""Assigns evidence to attempts of a job. torchrun and dtk store each attempt in a folder `attempt_<n>`."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.formatting import UNNAMED
from diagnostics.evidence.endings import ORDER, ends_a_rank, of_error
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import EarlierAttempt, Evidence, Owner, RankError
from diagnostics.evidence.reader import Contents
from diagnostics.evidence.readers import error, watch

_ATTEMPT = re.compile(r"(?:^|(.*)/)attempt_(\d{1,6})/")
MOST_REPORTED = 3  # Maximum number of reported attempts before the last one.
_MOST_RANKS = 1024  # Maximum number of error files read per earlier attempt.


def set_aside(
    evidence: Evidence, files: Iterable[str], read: list[tuple[Contents, Owner]]
) -> list[tuple[Contents, Owner]]:
    """Return the contents of the last attempt; move errors of earlier ones to `evidence.earlier`.

    Nothing is set aside if no content of the last attempt was read, as its result is then unknown.
    """
    for contents, _ in read:
        offset = contents.offset or 0
        for number, errors in enumerate(contents.earlier):
            ranked = [e if e.rank is None or e.rank >= 0 else replace(e, rank=offset - 1 - e.rank) for e in errors]
            evidence.earlier.append(EarlierAttempt(number, _first(ranked)))
    if evidence.run is not None:
        evidence.earlier = _of_run(evidence.run.root, evidence.run.attempt, evidence.limits)
        return read
    last = dict(sorted(filter(None, map(_place, files))))
    if not any(last.values()):
        return read
    ended_well = any(fact.kind == watch.ENDED_WELL for contents, _ in read for fact in contents.facts)
    speak = {place[0] for contents, _ in read if (place := _place(contents.file)) and place[1] == last[place[0]]}
    of_last: list[tuple[Contents, Owner]] = []
    earlier: dict[int, list[RankError]] = {}
    for contents, owner in read:
        place = _place(contents.file)
        if place is not None and place[1] < last[place[0]] and (ended_well or place[0] in speak):
            earlier.setdefault(place[1], []).extend(contents.errors)
        elif place is None and ended_well and contents.errors:
            # All attempts write to the launcher's log, which states at the end that the last one succeeded.
            earlier.setdefault(max(last.values()) - 1, []).extend(contents.errors)
        else:
            of_last.append((contents, owner))
    evidence.earlier += [EarlierAttempt(attempt, _first(errors)) for attempt, errors in sorted(earlier.items())]
    return of_last


def _place(file: str) -> tuple[str, int] | None:
    match = _ATTEMPT.match(file)
    return None if match is None else ((match[1] or "").rpartition("/")[0], int(match[2]))


def _of_run(root: Path, attempt: int, limits: Limits) -> list[EarlierAttempt]:
    """Return how the attempts of a dtk run before the last one ended, from their error files."""
    earlier = []
    for number in range(max(0, attempt - MOST_REPORTED), attempt):
        errors, silent = [], []
        for rank in range(_MOST_RANKS):
            path = RunPaths(root).error(number, rank)
            if not path.parent.is_dir() or path.parent.is_symlink():
                break
            silent += [] if path.exists() else [rank]
            with suppress(OSError, ValueError):
                errors.append(error.read(path, str(path.relative_to(root)), rank, limits))
        earlier.append(EarlierAttempt(number, _first(errors), tuple(silent) if errors else ()))
    return earlier


def _first(errors: Iterable[RankError]) -> RankError | None:
    """Return the error of the rank that failed first: causes before consequences, named ranks first, then by time."""

    def order(error: RankError) -> tuple[int, bool, float]:
        rank = UNNAMED if error.rank is None else error.rank
        return ORDER[of_error(error, rank).kind], error.rank is None, error.time_s or 0.0

    return min(filter(ends_a_rank, errors), key=order, default=None)
