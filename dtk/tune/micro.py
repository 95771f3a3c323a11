"""`dtk tune micro_batch_size`: the largest that fits, then which of those that fit is fastest."""

from collections.abc import Sequence

from dtk.tune.candidates import MICRO_BATCH_SIZE, Candidate
from dtk.tune.model import NO_GAIN, Row, row
from dtk.tune.search import largest
from dtk.tune.trials import Trials

FIRST = 1


class ProbeFailedError(Exception):
    """A probe ended by something else than memory: the search cannot go on. Its text is one line."""


class TimeUpError(Exception):
    """No time for another probe."""


def find_largest(trials: Trials, sizes: Sequence[int]) -> int | None:
    """Double, then bisect; None when not even the smallest fits, or nothing was tried.

    Raises:
        ProbeFailedError: a probe failed, and not by memory.
    """

    def fits(size: int) -> bool:
        made = trials.try_once(candidate(size), FIRST, "search")
        if made is None:
            raise TimeUpError
        if not made.fits and not made.out_of_memory:
            raise ProbeFailedError(f"{MICRO_BATCH_SIZE}={size} {made.state}: {made.reason or 'no reason recorded'}")
        return made.fits

    try:
        return largest(sizes, fits)
    except TimeUpError:
        return max((size for size in fitting(trials)), default=None)


def fitting(trials: Trials) -> list[int]:
    """Sizes that fitted so far, ascending."""
    return sorted(int(one.value) for one, probes in trials.probes.items() if all(made.fits for made in probes.values()))


def candidate(size: int) -> Candidate:
    """One size."""
    return Candidate(MICRO_BATCH_SIZE, str(size))


def rows(trials: Trials) -> tuple[list[Row], Candidate | None]:
    """All sizes, ascending, with gains over the fastest, which comes as the second."""
    tried = sorted(trials.probes, key=lambda one: int(one.value))
    found = {one: row(one, trials.probes[one], None) for one in tried}
    speeds = {one: made.tokens_per_s for one, made in found.items() if made.finished and made.tokens_per_s is not None}
    fastest = max(speeds, key=lambda one: speeds[one].median, default=None)
    if fastest is None:
        return list(found.values()), None
    reference = trials.probes[fastest]
    made = [row(one, trials.probes[one], None if one == fastest else reference) for one in tried]
    return made, fastest


def choose(found: Sequence[Row], fastest: Candidate | None) -> Candidate | None:
    """Return the smallest candidate that cannot be told from the fastest one, as it leaves the most memory."""
    if fastest is None:
        return None
    # Without an interval nothing can be told, so the fastest as measured is taken.
    alike = [one.candidate for one in found if one.finished and one.gain is not None and _alike(one)]
    return min([fastest, *alike], key=lambda one: int(one.value))


def verdict(found: Sequence[Row], taken: Candidate | None, fastest: Candidate | None, most: int, *, up: bool) -> str:
    """In one sentence.

    Args:
        found: all sizes.
        taken: the one to take.
        fastest: the one with the most tokens/s.
        most: the largest size that is valid.
        up: whether the time was up before the search had ended.
    """
    if taken is None or fastest is None:
        return "not even the smallest micro-batch fits" if found else "nothing was tried"
    fit = max(int(one.candidate.value) for one in found if one.finished)
    beyond = any(one.out_of_memory for one in found)
    limit = "the largest found before the time was up" if up else "the largest that fits" if beyond else "the largest"
    if not beyond and not up and fit == most:
        limit = "the largest valid one, and it fits"
    told = f"take {taken.override}; {MICRO_BATCH_SIZE}={fit} is {limit}"
    return told if taken == fastest else f"{told}, {fastest.override} has {NO_GAIN}"


def _alike(one: Row) -> bool:
    return one.gain is not None and one.gain.low is not None and one.gain.holds(1.0)
