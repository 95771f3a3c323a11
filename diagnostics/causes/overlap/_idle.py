"""A device that stands idle: for how long and for which reason, on which ranks, and what the host did meanwhile."""

from collections import Counter
from statistics import median

from diagnostics.analysis.step_profile.gaps import Reason
from diagnostics.analysis.step_profile.overview import MS, Overview

_OUTLIER = 3.0
"""A rank that idles that many times longer than the median is named alone."""


def idle_ms(view: Overview, reason: Reason) -> tuple[tuple[int, ...], float]:
    """Return the ranks to name, all or those that stand out, and what they idle for one reason, ms a step.

    Of each rank it is the median over its steps, so that one hiccup does not count.
    """
    idle = {one.rank: median([step.gaps.get(reason, 0) / MS for step in one.steps] or [0.0]) for one in view.profiles}
    typical, worst = median(idle.values()), max(idle.values())
    if len(idle) > 1 and worst > _OUTLIER * typical and view.worth(worst - typical):
        return tuple(sorted(rank for rank, ms in idle.items() if ms > max(_OUTLIER * typical, worst / 2))), worst
    return view.ranks, typical


def others(view: Overview, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the traced ranks that are not among these."""
    return tuple(rank for rank in view.ranks if rank not in ranks)


def occupation(view: Overview, ranks: tuple[int, ...], reason: Reason) -> tuple[str, int]:
    """Return what the host did in most of that time, and in how many of the longest stretches."""
    time: Counter[str] = Counter()
    count = 0
    for one in view.profiles:
        for gap in one.gaps if one.rank in ranks else ():
            if gap.reason == reason:
                time[gap.detail] += gap.length
                count += 1
    return (max(time, key=lambda name: (time[name], name)) if time else ""), count
