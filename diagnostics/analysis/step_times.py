"""How fast a job printed its steps: from where on they were slower, and a silence before something stopped the job."""

from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, nan
from statistics import median, mode

from msgspec import Struct

from diagnostics.analysis.printed_steps import LEAST_AFTER, WINDOW, PrintedSteps, ascent, last_run, rise, step_text
from diagnostics.evidence.logs.patterns import moment
from diagnostics.evidence.logs.steps import Series
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers.log import training_ended

_TICKS = 20  # A time is divided among steps only where it is so many times the resolution of its clock.
_SKEW = 3  # Maximum number of printed steps by which ranks that share a log are apart.
_BY_TURNS = 0.1  # Share of steps behind earlier ones from which several jobs print into one log by turns.
_HALF = 2  # Steps on either side of one whose median duration counts: a pause is over after fewer.
_PAUSES, _SILENCE_S = 5.0, 300.0
"""Minimum silence: over the longest pause between steps (evaluations, checkpoints), and in seconds."""


class Slower(Struct, frozen=True):
    """Steps that became slower, and stayed so to the end of a log."""

    file: str
    line: int
    where: str
    """The first one: its number, the epoch, or the line."""
    before_s: float
    after_s: float
    """Median duration of a step before and after it; from one printed line to the next where no steps are counted."""


class Silence(Struct, frozen=True):
    """The time without a printed step before something stopped the job."""

    file: str
    line: int
    where: str
    """The last step."""
    silent_s: float
    longest_s: float
    """Longest pause between steps before it."""


def slower(printed: PrintedSteps) -> Slower | None:
    """Return from where on the steps of a log were slower to its end, or None."""
    for log in printed.logs:
        for series in (log.series, log.steps.bars):
            rows, every_s = _durations(series, log.steps.resumes)
            spent_s = [median(every_s[max(0, n - _HALF) : n + _HALF + 1]) for n in range(len(every_s))]
            if (change := rise(spent_s) or ascent(spent_s)) is not None:
                return Slower(log.file, *_place(series, rows[change[0]]), *change[1:])
    return None


def silence(evidence: Evidence) -> Silence | None:
    """Return the silence before a line says that the job was stopped, if it is far longer than any pause before."""
    logs = [fact for fact in evidence.facts if fact.kind == "steps"]
    every = ((fact.file, series) for fact in logs for series in fact.fields["steps"].series.values())
    dated = [(max(own), own, *log) for log in every if len(own := [at for at in log[1].at_s if at == at]) > LEAST_AFTER]
    near_s = max((fact.fields["steps"].near_s for fact in logs), default=0.0)
    stops_s = [moment(fact.text, near_s) or 0.0 for fact in evidence.facts if fact.kind == "job_stopped"]
    if not dated or not stops_s or training_ended(evidence):
        return None
    last_s, own, file, series = max(dated, key=lambda row: row[0])
    silent_s = min((at - last_s for at in stops_s if at > last_s), default=0.0)
    longest_s = max(b - a for a, b in pairwise(own))
    if silent_s < max(_SILENCE_S, _PAUSES * longest_s):
        return None
    return Silence(file, *_place(series, series.at_s.index(last_s)), silent_s, longest_s)


def _place(series: Series, row: int) -> tuple[int, str]:
    return series.lines[row], step_text(series.step[row]) or f"line {series.lines[row]:,}"


def _durations(series: Series, resumes: Sequence[int]) -> tuple[list[int], list[float]]:
    """Return rows of the last run of a log, and the time (s) of a step from the row before to each of them."""
    timed = next((own for own in (series.took_s, series.at_s) if sum(map(isfinite, own)) >= WINDOW + LEAST_AFTER), None)
    if timed is None:
        return [], []
    total, begin = mode(series.total or [nan]), [0, *resumes][bisect(resumes, series.lines[-1])]
    # Other progress bars are of an evaluation.
    own = [nan if total == total != series.total[n] or series.lines[n] < begin else at for n, at in enumerate(timed)]
    rows, behind = list[int](), 0
    for n in (run := last_run(series, own)):
        if not rows or not series.step[n] <= series.step[rows[-1]]:
            rows.append(n)  # Ranks print a step again.
        behind += series.step[n] < series.step[rows[-_SKEW:][0]]
    if behind > _BY_TURNS * len(run):
        return [], []
    if timed is series.took_s:
        return rows, [timed[n] for n in rows]
    least_s = _TICKS * (1.0 if all(timed[n] % 1 == 0 for n in rows) else 0.001)
    ends, spent_s, start = list[int](), list[float](), rows[:1]
    for n in rows:
        passed_s, steps = timed[n] - timed[start[-1]], series.step[n] - series.step[start[-1]]
        if passed_s >= least_s:
            ends.append(n)
            spent_s.append(passed_s / (steps if steps == steps else n - start[-1]))
            start.append(n)
    return ends, spent_s
