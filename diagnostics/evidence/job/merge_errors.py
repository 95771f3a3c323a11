"""Makes one record of what several files say about the same end of a rank. Decides nothing."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

from diagnostics.evidence.model import RankError


def merge_errors(errors: list[RankError]) -> list[RankError]:
    """One record where several files tell of the same end; by rank, then by time.

    A traceback in a log repeats the error file, torchrun's list and dtk's status repeat both: the fullest is
    kept and given the exit code, signal, step and time that only another has.
    """
    by_rank: defaultdict[int | None, list[RankError]] = defaultdict(list)
    for error in sorted(errors, key=_fullness):
        if error.rank is None:
            alike = (other for other in by_rank[None] if (other.type, other.signal) == (error.type, error.signal))
            if not any(_words(other.message) == _words(error.message) for other in alike):
                by_rank[None].append(error)
            continue
        fuller = by_rank[error.rank]
        index = next((i for i, other in enumerate(fuller) if _same(error, other)), None)
        if index is None:
            fuller.append(error)
        else:
            fuller[index] = _joined(fuller[index], error)
    merged = [error for group in by_rank.values() for error in group]
    merged.sort(key=lambda e: (e.time_s is None, e.time_s or 0.0, e.file, e.line, e.type, e.message))
    return sorted(merged, key=lambda error: (error.rank is None, error.rank or 0))


def _fullness(error: RankError) -> tuple[Any, ...]:
    """Fullest first: with a type, with frames, from a file of its own."""
    own_file = error.line == 0 and error.file != "status.json"
    return (not error.type, not error.frames, not own_file, error.file, error.line, error.type, error.message)


def _same(error: RankError, other: RankError) -> bool:
    """Whether two records may tell of one end: the same exception, or one says only how the process ended."""
    if error.type and other.type:
        mine, theirs = _words(error.message), _words(other.message)
        return error.type == other.type and (mine.startswith(theirs[:60]) or theirs.startswith(mine[:60]))
    if error.type or other.type:
        bare = other if error.type else error
        return bare.signal is None or bare.signal == "SIGABRT"
    return error.signal == other.signal or not (error.signal and other.signal)


def _words(text: str) -> str:
    return " ".join(text.split())


def _joined(full: RankError, other: RankError) -> RankError:
    return replace(
        full,
        frames=full.frames or other.frames,
        signal=full.signal or other.signal,
        exit_code=other.exit_code if full.exit_code is None else full.exit_code,
        time_s=other.time_s if full.time_s is None else full.time_s,
        step=other.step if full.step is None else full.step,
        region=full.region or other.region,
    )
