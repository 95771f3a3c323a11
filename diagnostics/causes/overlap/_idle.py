"""Idle time of a device: how long and why, on which ranks, and what the host did meanwhile."""

from collections import Counter
from statistics import fmean, median_low
from typing import Any

from msgspec import Struct

from diagnostics.analysis.step_profile.account import MOST
from diagnostics.analysis.step_profile.gaps import Reason
from diagnostics.analysis.step_profile.overview import MS, Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._shared import costly, judged, on_cpu, others, step_cause
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import CERTAIN, Finding
from diagnostics.evidence.trace.model import HostWork

_OUTLIER = 3.0  # Multiple of the median idle time from which a rank is reported alone.


class Idle(Struct, frozen=True):
    """Idle time with the same reason."""

    reason: Reason
    ms: float
    """Idle ms per step, of the typical rank or of the outliers; a single hiccup does not count."""
    mean_ms: float
    """The mean of all steps, in which it does, of the rank with most."""
    ranks: tuple[int, ...]
    """All ranks, or the outliers."""
    within: str
    """What the host did in most of the longest stretches; empty if not recorded."""
    work: HostWork
    caller: str
    """The user's function in which that happens; empty if not recorded."""
    count: int
    """Number of the longest stretches."""
    longest_ms: float


def idle(view: Overview, reason: Reason) -> Idle:
    """Add up the idle time for one reason."""
    steps = {own.rank: [step.gaps.get(reason, 0) / MS for step in own.steps] or [0.0] for own in view.profiles}
    by_rank = {rank: _a_step(amounts) for rank, amounts in steps.items()}
    ms, worst, ranks = median_low(by_rank.values()), max(by_rank.values()), view.ranks  # One of two may be an outlier.
    if len(by_rank) > 1 and worst > _OUTLIER * ms and view.worth(worst - ms):
        ranks = tuple(sorted(rank for rank, own in by_rank.items() if own > max(_OUTLIER * ms, worst / 2)))
        ms = worst
    gaps = [gap for profile in view.profiles if profile.rank in ranks for gap in profile.gaps if gap.reason == reason]
    time: Counter[tuple[str, HostWork, str]] = Counter()
    for gap in gaps:
        time[gap.detail, gap.work, gap.caller] += gap.length
    most = max(time, key=lambda key: (time[key], key), default=("", "", ""))
    mean_ms = max(map(fmean, steps.values()))
    return Idle(reason, ms, mean_ms, ranks, *most, len(gaps), max((gap.length for gap in gaps), default=0) / MS)


def _a_step(amounts: list[float]) -> float:
    """Return the mean if the idle time recurs, such as with a loader that stalls every fifth step; else the median.

    A single hiccup does not count, even in one of two steps: one checkpoint does not show how often there is one.
    """
    ordered = sorted(amounts)
    recurs = len(ordered) == 1 or 2 * ordered[-2] >= ordered[-1]
    return max(median_low(ordered), fmean(ordered) if recurs else 0.0)


def judged_idle(
    view: Overview, own: Idle, confidence: float, texts: Texts, row: str = "default", least: float = MOST, **also: Any
) -> Finding:
    """Confirm a reason for idle time with at least that share of a step, by the row `shown`; others wait for these."""
    facts = costly(view, own.ms, texts, row, idle=own, **also)
    shown = texts.phrase("shown", idle=own, unit=view.unit, **also)
    who: dict[str, Any] = {"ranks": own.ranks, "victims": others(view, own.ranks)}
    return judged(view, facts, shown, **who, confidence=confidence, of_transfer=False, least=least)


def idle_cause(file: str, reason: Reason) -> Cause[Overview]:
    """Return the cause of a device's idle time for one reason."""
    texts = Texts(file)
    return step_cause(
        file, lambda view: judged_idle(view, idle(view, reason), CERTAIN, texts), unless=(on_cpu("cpu_host"),)
    )


CAUSE_OF = idle_cause
