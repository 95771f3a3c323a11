"""How fast a job printed its steps: from where on they were slower, and a silence before something stopped the job."""

import re
from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite, nan
from statistics import median, mode

from msgspec import Struct

from diagnostics.analysis.printed_steps import LEAST_AFTER, WINDOW, Jump, PrintedSteps, change, last_run, step_text
from diagnostics.evidence.job.rank_endings import in_other_zone
from diagnostics.evidence.logs.patterns import ZONE_S, moment
from diagnostics.evidence.logs.steps import Series
from diagnostics.evidence.model import CLAUSE, Evidence, shortened
from diagnostics.evidence.readers.log import last_progress, training_ended

Slowed = Callable[[], Jump | None]  # Returns from where on steps were slower; the result of `slower`, kept.
_TICKS = 20  # A time is divided among steps only where it is so many times the resolution of its clock.
_SKEW = 3  # Maximum number of printed steps by which ranks that share a log are apart.
_BY_TURNS = 0.1  # Share of steps behind earlier ones from which several jobs print into one log by turns.
_HALF = 2  # Steps on either side of one whose median duration counts: a pause is over after fewer.
_JOB = re.compile(r"\*\*\* (?:JOB|STEP) (\d+)")
_STREAM = re.compile(r"(?<![a-z])(?:std)?(?:err|out|log)(?![a-z])|(?<=\.)[eo](?=\d+$)")
"""What the names of the two streams of a job differ in."""
_PAUSES, _SILENCE_S = 5.0, 300.0
"""Minimum silence: over the longest pause between steps (evaluations, checkpoints), and in seconds."""
_LAUNCHER_S = 5.0  # Chosen: a launcher logs a signal within seconds.
_ZONES = {4, 8, 10, 12, 14}  # Quarters of an hour by which zones differ, up to 3.5 hours; from there on by any.


class Silence(Struct, frozen=True):
    """The time without a sign of life before something stopped the job."""

    file: str
    line: int
    where: str
    """The last step, or the text of the last line if it is of something else."""
    silent_s: float
    longest_s: float
    """Longest pause between steps before it."""
    of_ranks: bool
    """Whether the evidence names ranks or processes, so that one may have waited for another."""
    may_be_zone: bool = False
    """Whether there may have been none, as zones differ by such a time."""


def slower(printed: PrintedSteps) -> Jump | None:
    """Return from where on the steps of a log were slower to its end, with medians of their durations, or None."""
    for log in printed.logs:
        for series in (log.series, log.steps.bars):
            rows, every_s = _durations(series, log.steps.resumes)
            spent_s = [median(every_s[max(0, n - _HALF) : n + _HALF + 1]) for n in range(len(every_s))]
            if (case := change(log.file, series, rows, spent_s, LEAST_AFTER)) is not None:
                return case
    return None


def silence(evidence: Evidence) -> Silence | None:
    """Return the silence before a line says that the job was stopped, if it is far longer than any pause before.

    Logs of a job: that with the line, the one of its other stream, and those with the job's id in their names.
    """
    silences = list[Silence]()
    steps = [fact for fact in evidence.facts if fact.kind == "steps"]
    went_on = last_progress(evidence)
    stops = [f for f in evidence.facts if f.kind == "job_stopped" and f.line > went_on.get(f.file, 0)]
    for stop in {stop.file: stop for stop in reversed(stops)}.values():
        name, number = _STREAM.sub("", stop.file), (_JOB.findall(stop.text) or [""])[0]
        logs = [log for log in steps if _STREAM.sub("", log.file) == name or number in re.findall(r"\d+", log.file)]
        every = [(log.file, each) for log in logs for each in log.fields["steps"].series.values()]
        dated = [own for _, each in every if len(own := [at for at in each.at_s if at == at]) > LEAST_AFTER]
        signs = [log.fields["alive"] for log in logs if log.file != stop.file] + [stop.fields["alive"]]
        last = max(filter(None, signs), key=lambda sign: sign.fields["at_s"], default=None)
        end_s = moment(stop.text, max((log.fields["steps"].near_s for log in logs), default=0.0))
        if last is None or end_s is None or not dated or training_ended(evidence, {stop.file, *(f for f, _ in every)}):
            continue
        silent_s, longest_s = end_s - last.fields["at_s"], max(b - a for own in dated for a, b in pairwise(own))
        # A scheduler may write in another zone, and whole seconds, of a job that went on until it was stopped.
        at_s = silent_s - longest_s / 2
        differ = at_s > max(_ZONES) * ZONE_S or round(at_s / ZONE_S) in _ZONES  # Zones do, by about such a time.
        is_zone = differ and in_other_zone(at_s, longest_s / 2 + _LAUNCHER_S)
        if silent_s >= max(_SILENCE_S, _PAUSES * longest_s):
            holding = (each for file, each in every if file == last.file and last.line in each.lines)
            numbers = (step_text(each.step[each.lines.index(last.line)]) for each in holding)
            where = next(filter(None, numbers), f'"{shortened(last.text.strip(), CLAUSE)}"')
            of_ranks = (evidence.world_size or 0) > 1 or any(f.rank is not None for f in (last, *evidence.facts))
            silences.append(Silence(last.file, last.line, where, silent_s, longest_s, of_ranks, is_zone))
    return min(silences, key=lambda each: each.silent_s, default=None)


def _durations(series: Series, resumes: Sequence[int]) -> tuple[list[int], list[float]]:
    """Return rows of the last run of a log, and the time (s) of a step from the row before to each of them."""
    timed = next((own for own in (series.took_s, series.at_s) if sum(map(isfinite, own)) >= WINDOW + LEAST_AFTER), None)
    if timed is None:
        return [], []
    total, begin = mode(series.total or [nan]), [0, *resumes][bisect(resumes, series.lines[-1])]
    # Other progress bars are of an evaluation, and batches of another size are other work.
    totals, sizes = (own or [nan] * len(timed) for own in (series.total, series.size))
    size = sizes[-1]
    differs = [a != total == total or b != size == size for a, b in zip(totals, sizes, strict=True)]
    own = [nan if differs[n] or series.lines[n] < begin else at for n, at in enumerate(timed)]
    rows, behind = list[int](), 0
    for n in (run := last_run(series, own)):
        if not rows or not series.step[n] <= series.step[rows[-1]]:
            rows.append(n)  # Ranks print a step again.
        behind += series.step[n] < series.step[rows[-_SKEW:][0]]
    if behind > _BY_TURNS * len(run):
        return [], []
    falls = sum(timed[b] <= timed[a] for a, b in pairwise(rows))  # Few: the time since the start is printed.
    if timed is series.took_s and falls > _BY_TURNS * len(rows):
        return rows, [timed[n] for n in rows]
    least_s = _TICKS * (1.0 if all(timed[n] % 1 == 0 for n in rows) else 0.001)
    spent_s, start = list[float](), rows[:1]
    for n in rows:
        passed_s, steps = timed[n] - timed[start[-1]], series.step[n] - series.step[start[-1]]
        if passed_s >= least_s:
            spent_s.append(passed_s / (steps if steps == steps else n - start[-1]))
            start.append(n)
    return start[1:], spent_s
