"""`dtk tune micro_batch_size`: finds the largest that fits, then the fastest of those that fit."""

from collections.abc import Sequence

from dtk.plan.solve import largest
from dtk.tune.candidates import MICRO_BATCH_SIZE, Candidate
from dtk.tune.model import NO_GAIN, Row, row_of
from dtk.tune.probe import Trials

FIRST = 1  # Index of the round in which sizes are searched.


class ProbeFailedError(Exception):
    """A probe failed for a reason other than memory, which ends the search. The message is one line."""


class TimeUpError(Exception):
    """There is no time for another probe."""


def find_largest(trials: Trials, sizes: Sequence[int]) -> int | None:
    """Find the largest size that fits by doubling, then bisection; None if none fits or nothing was tried.

    ProbeFailedError if a probe failed for a reason other than memory.
    """

    def fits(size: int) -> bool:
        probe = trials.try_once(candidate(size), FIRST, "search")
        if probe is None:
            raise TimeUpError
        if not probe.fits and not probe.out_of_memory:
            raise ProbeFailedError(f"{MICRO_BATCH_SIZE}={size} {probe.state}: {probe.reason or 'no reason recorded'}")
        return probe.fits

    try:
        return largest(sizes, fits)
    except TimeUpError:
        return max(fitting(trials), default=None)


def fitting(trials: Trials) -> list[int]:
    """Return the sizes that fit so far, ascending."""
    return sorted(int(size.value) for size, probes in trials.probes.items() if all(p.fits for p in probes.values()))


def candidate(size: int) -> Candidate:
    """Return one size as a candidate."""
    return Candidate(MICRO_BATCH_SIZE, str(size))


def rows(trials: Trials) -> tuple[list[Row], Candidate | None]:
    """Return all sizes, ascending, with gains over the fastest, and the fastest."""
    tried = sorted(trials.probes, key=lambda size: int(size.value))
    alone = {size: row_of(size, trials.probes[size], None) for size in tried}
    speeds = {size: row.tokens_per_s.median for size, row in alone.items() if row.finished and row.tokens_per_s}
    fastest = max(speeds, key=speeds.__getitem__, default=None)
    reference = None if fastest is None else trials.probes[fastest]
    return [row_of(size, trials.probes[size], None if size == fastest else reference) for size in tried], fastest


def choose(rows: Sequence[Row], fastest: Candidate | None) -> Candidate | None:
    """Return the smallest candidate that is not significantly slower than the fastest, as it leaves the most memory."""
    if fastest is None:
        return None
    # Without intervals no difference is significant, so the fastest as measured is used.
    measured = [row for row in rows if row.finished and row.gain is not None and row.gain.low is not None]
    alike = [row.candidate for row in measured if row.gain is not None and row.gain.holds(1.0)]
    return min([fastest, *alike], key=lambda size: int(size.value))


def verdict(rows: Sequence[Row], taken: Candidate | None, fastest: Candidate | None, most: int, *, up: bool) -> str:
    """Return the result in one sentence."""
    if taken is None or fastest is None:
        return "not even the smallest micro-batch fits" if rows else "nothing was tried"
    fit = max(int(row.candidate.value) for row in rows if row.finished)
    beyond = any(row.out_of_memory for row in rows)
    limit = "the largest found before the time was up" if up else "the largest that fits" if beyond else "the largest"
    if not beyond and not up and fit == most:
        limit = "the largest valid one, and it fits"
    take = f"use {taken.override}; {MICRO_BATCH_SIZE}={fit} is {limit}"
    return take if taken == fastest else f"{take}, {fastest.override} has {NO_GAIN}"
