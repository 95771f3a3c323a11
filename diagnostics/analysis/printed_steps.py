"""Symptoms in the steps that a trainer printed: endless overflow, values that stay non-finite, a loss that jumps."""

import math
import statistics
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.evidence.logs.steps import NEARLY_ALL, Series, Steps
from diagnostics.evidence.model import Evidence, RankError

STEPS = ("steps", "trainer_steps", "step_records")
"""Kinds of facts: from a log, from the saved state of Hugging Face's Trainer, from records as JSON lines."""
WINDOW = 20  # Number of steps before a jump with which the later ones are compared.
LEAST_AFTER = 10
"""Minimum number of steps for which a change has to last, which excludes a spike that training recovers from."""
_HIDDEN = 3  # Steps with a non-finite norm and a loss of exactly 0; a single one is a skipped step of float16.
RATIO = 1.5  # Minimum ratio of the losses after and before a jump. A new data set or learning rate has a smaller one.
SIGMAS = 10.0  # Minimum size of a jump in standard deviations before it, so that noisy losses (RL) do not count.
_MAD = 1.4826  # Standard deviation of a normal distribution over its median absolute deviation.
_LEAST_NOISE = 1e-3  # Of the loss: printed with 3 digits, it varies by that much even if it seems constant.
_FIRST = 3  # A loss is said to begin at the maximum over so many steps, as batches differ.
_WORSE = 2.0  # Minimum ratio of the last losses to that. No schedule makes a model so much worse than untrained.
_BEFORE = 4  # Number of smoothed losses above whose maximum a later one has risen.
_FULL = 1.0  # A loss that begins below it may consist of terms that are 0 at first: a KL term of RL, a penalty.
_FELL = 0.9  # Of the first loss: below it, the model had learned something.
MOST = 50_000  # Maximum number of last steps to analyse.
SCALE_ENDS = 1.0  # Loss scale that cannot be halved further: DeepSpeed's minimum. A warm-up ends far above it.
_SEARCHED = 100  # Chosen: a search from 2 ** 32 skips 32 steps, or 64 where each value is tried twice.
_LOWEST = 3  # Minimum number of skipped steps at or below that scale.
_NEARLY, _WORKED, _CLOSE, _LOW = 5, 2.0**12, 4, 4.0
"""The log ends after 5 or more skipped steps, at most 2 * 4 lines apart, at a scale with which gradients of 16,000 fit.
They begin at one at which training worked, below 2 ** 12: a scale that is searched begins higher, mostly at 2 ** 16."""
_STAGES, _SEARCH = 3, 10.0
"""Chosen: a line that stands in a log more often announces no change, and how far a search raises the rate by then."""
FEW = 2  # Minimum number of steps for a rise that is too recent to judge. A single one may be a batch.
_NORM_RATIO = 10.0  # Minimum ratio of the gradient norms after and before a rise in which the loss has no part.
OUTLIERS = 10  # Up to one part in so many of the values may be outliers: single spikes, or steps of another data set.
_MARGIN = 0.25  # A loss is at one of two levels if it is closer to it than this part of their distance.
_TURNS = 3  # A loss that rises to the later level so often belongs to two series that share a log.
_FROM_START = 0.5  # Of the largest step number: a step below it belongs to another run or another epoch.


class Printed(Struct, frozen=True):
    """The steps that one trainer printed into one log."""

    file: str
    steps: Steps
    """The steps of all trainers in the log."""
    trainer: str = ""
    """Name of the trainer's format; empty if only overflows were printed."""

    @property
    def series(self) -> Series:
        """The steps of this trainer; empty if only overflows were printed."""
        return self.steps.series.get(self.trainer, Series())

    def is_comparable(self, other: "Printed") -> bool:
        """Whether the losses may be compared: two trainers that print into the same logs may sum them differently."""
        return self.trainer == other.trainer or not self.steps.series.keys() & other.steps.series.keys()


class PrintedSteps(Struct, frozen=True):
    """The steps that a job printed, from which the numerics causes are decided."""

    logs: tuple[Printed, ...]
    errors: tuple[RankError, ...]
    known_task: bool = False
    """Whether the run is of one of dtk's own tasks, whose loss training minimises."""

    @property
    def count(self) -> int:
        """Largest number of steps in one log: every rank, and a file of records, may have the same steps."""
        return max((len({*log.series.step}) for log in self.logs), default=0)  # Each NaN counts.


class Skipped(Struct, frozen=True):
    """Consecutive steps that were skipped, up to the end of the log."""

    file: str
    line: int
    """Line of the first."""
    count: int
    scale: float
    """The last loss scale; NaN = not printed."""
    began: float = math.nan
    """The loss scale at which training had worked before it fell, if only that shows the skipped steps."""


class NonFinite(Struct, frozen=True):
    """Steps up to the end of the log whose loss or gradient norm is not finite."""

    figure: str
    """`loss` or `grad_norm`."""
    line: int
    """Line of the first."""
    count: int
    lasting: bool
    """Whether training cannot recover: fewer steps may be a bad batch, or steps that float16 skips."""


class Jump(Struct, frozen=True):
    """A printed figure, such as the loss, that rose and stayed high."""

    file: str
    line: int
    step: float
    """Number of the step, or the epoch; NaN = not printed."""
    before: float
    after: float
    norms: tuple[float, float] | None
    """Median gradient norms before and after it; None if not printed."""
    steps_after: int
    fell: bool = True
    """Whether the loss had fallen before."""
    at_once: bool = True
    """False: it climbed gradually to far above its initial value."""
    meant: bool = False
    """Whether the log announces a change there, or the learning rate grows by a factor, as in a search for one."""
    back: float = math.nan
    """The level to which it returned, if it did."""

    @property
    def where(self) -> str:
        """Where it rose: the number of the step, the epoch, or the line."""
        return step_text(self.step) or f"line {self.line:,}"


def printed_steps(evidence: Evidence) -> PrintedSteps:
    """Return the steps of all logs; of several trainers in a log, the one that printed the most steps comes first."""
    logs = []
    for fact in (fact for fact in evidence.facts if fact.kind in STEPS):
        steps: Steps = fact.fields["steps"]
        by_length = sorted(steps.series, key=lambda trainer: (-len(steps.series[trainer].lines), trainer))
        logs += [Printed(fact.file, steps, trainer) for trainer in by_length or [""]]
    run = evidence.run if evidence.run is not None and evidence.run.manifest.get("launcher") != "own" else None
    # A user's own task or loop may have any kind of loss, such as a reward.
    is_known = run is not None and isinstance(run.get("task.name"), str) and run.get("task._target_") is None
    return PrintedSteps(tuple(logs), tuple(evidence.errors), is_known)


def skipped_to_the_end(log: Printed) -> Skipped | None:
    """Return the consecutive skipped steps at the end of the log, or None if there are too few of them."""
    steps, series = log.steps, log.series
    lines, scales = steps.overflow_lines, steps.overflow_scales
    low = [line for line, scale in zip(lines, scales, strict=True) if scale <= SCALE_ENDS]
    # fairseq's scale falls on below 1, also while training works: then no step may come between.
    is_below = bool(low) and scales[-1] < SCALE_ENDS
    if is_below and steps.last > low[0]:
        return None
    if lines and lines[-1] + LEAST_AFTER > steps.last:
        run = _trailing([b - a <= 2 * _CLOSE for a, b in pairwise(lines)]) + 1
        if run >= _NEARLY and scales[-1] <= _LOW and scales[-run] < _WORKED:
            return Skipped(log.file, lines[-run], run, scales[-1])
        if len(low) >= (LEAST_AFTER if is_below else _LOWEST):
            return Skipped(log.file, low[0], len(low), scales[-1])
    pairs = pairwise(zip(series.step, series.scale, strict=True))  # GradScaler has no minimum: its scale falls to 0.
    each = [(step - last, old / new if new else math.inf * (old >= 0)) for (last, old), (step, new) in pairs]
    run = _trailing([ratio > 1 and 0 < NEARLY_ALL * steps <= math.log2(ratio) for steps, ratio in each])
    count = int(sum(steps for steps, _ in each[len(each) - run :]))
    if count >= LEAST_AFTER and series.scale[-1 - run] > SCALE_ENDS >= series.scale[-1]:
        return Skipped(log.file, series.lines[-run], count, series.scale[-1])
    rows = zip(series.skipped, series.printed, strict=True)
    if not (run := _trailing([bool(skip > 0) and not bits & 1 for skip, bits in rows])):
        return None
    scale, count = series.scale[-1], int(sum(series.skipped[-run:]))  # A row of Megatron-LM counts its steps.
    # At the start of training, the search from a loss scale of 2 ** 32 skips many steps in a row.
    lasting = run >= LEAST_AFTER or count >= _SEARCHED
    lasting |= count >= LEAST_AFTER and (any(series.printed[:-run]) or scale <= SCALE_ENDS)
    return Skipped(log.file, series.lines[-run], count, scale) if lasting else None


def fallen_scale(log: Printed) -> Skipped | None:
    """Return the steps that were skipped while a printed loss scale fell to the end of its range, and stayed there.

    A scale that is searched from the first step on may end there too; then no later loss may be lower.
    """
    series = log.series
    rows = [n for n, scale in enumerate(series.scale) if 0 < scale < math.inf]  # NaN = not printed.
    begin = next((n for n in range(len(rows) - 1, 0, -1) if series.scale[rows[n - 1]] < series.scale[rows[n]]), 0)
    scales = [series.scale[n] for n in rows[begin:]] or [math.inf]
    halved, fall = math.log2(scales[0] / scales[-1]), rows[begin + scales.count(scales[0]) :]
    if not fall or scales[-1] > SCALE_ENDS or scales[0] < _WORKED or halved < LEAST_AFTER:
        return None
    losses = [series.loss[n] for n in fall]
    worked = len(rows) - len(fall) >= LEAST_AFTER or min(losses[_FIRST:], default=-math.inf) >= min(losses[:_FIRST])
    return Skipped(log.file, series.lines[fall[0]], int(halved), scales[-1], scales[0]) if worked else None


def non_finite_to_the_end(log: Printed) -> NonFinite | None:
    """Return the steps with a non-finite loss or gradient norm up to the end of the log; lasting ones are preferred."""
    series, jumps = log.series, []
    for name, values, bit in (("loss", series.loss, 1), ("grad_norm", series.norm, 2)):
        rows = zip(values, series.printed, strict=True)
        run = _trailing([bool(bits & bit) and not math.isfinite(value) for value, bits in rows])
        # Hugging Face's trainer prints 0 in place of a loss that is not finite.
        hidden = run >= _HIDDEN and not any(series.loss[1 - _HIDDEN :])  # The first norm belongs to a finite loss.
        # The log must say that the steps were not skipped; NaN = it does not say.
        # Where the scale is 1 (bfloat16) no step is ever skipped, so one more row only excludes a slip of the log.
        least = 2 if series.scale and series.scale[-1] == 1 else _HIDDEN
        applied = bit == 2 and run >= least and not any(series.skipped[-_HIDDEN:])
        skipped = bit == 2 and run > 1 and series.scale[-1] < series.scale[-run]  # As float16 does at first.
        # Of rows that are many steps apart, float16 skips none in each.
        applied |= (run >= _HIDDEN and series.step[-1] - series.step[-run] >= LEAST_AFTER) or run >= LEAST_AFTER // 2
        if run:
            jumps.append(NonFinite(name, series.lines[-run], run, not skipped and (hidden or applied)))
    return max(jumps, key=lambda case: case.lasting, default=None)


def step_text(step: float) -> str:
    """Return `step 40`, or `epoch 0.4` of a trainer that only prints epochs; empty if it prints neither."""
    return "" if math.isnan(step) else f"{f'step {step:,.0f}' if step % 1 == 0 else f'epoch {step:g}'}"


def jump(log: Printed, least: int = LEAST_AFTER) -> Jump | None:
    """Return where the loss jumps for at least so many steps, or climbs to far above its initial value, for good."""
    series = log.series
    points = last_run(series, series.loss)
    loss = [series.loss[n] for n in points]
    case = change(log.file, series, points, loss, least)
    if case is not None:
        at, rates = bisect(series.lines, case.line), series.lr[points[0] :] or [math.nan]
        near = {*series.lines[max(0, at - 2) : at + 1]}
        announced = any(near & lines and len(lines) <= _STAGES for lines in log.steps.announced.values())
        searches = max(rates) == rates[-1] > _SEARCH * rates[len(rates) // 2] > 0  # A warm-up doubles it at most.
        case = replace(case, meant=announced or searches)
    return case if case is None or case.at_once or max(loss[:_FIRST]) >= _FULL else None


def risen_norm(log: Printed) -> Jump | None:
    """Return where the gradient norm rises for good by an order of magnitude, whatever the loss does."""
    series, norm = log.series, log.series.norm
    rows = last_run(series, norm)
    case = change(log.file, series, rows, [norm[n] for n in rows], LEAST_AFTER)
    return case if case is not None and case.after > _NORM_RATIO * case.before else None


def passing(log: Printed, norm: bool = False) -> Jump | None:
    """Return the highest of at most a few spikes of the loss, or the gradient norm, from which training recovered."""
    series = log.series
    points, least = (series.norm, _NORM_RATIO) if norm else (series.loss, RATIO)
    rows = last_run(series, points)
    values, lows = [points[n] for n in rows], dict[int, float]()
    for n in range(LEAST_AFTER, len(values)):
        window = values[max(0, n - WINDOW) : n]
        if values[n] > least * min(window) > 0 and values[n] > least * (low := statistics.median(window)):
            noise = _MAD * statistics.median(abs(value - low) for value in window)
            lows |= {n: low} if values[n] > low + SIGMAS * max(noise, _LEAST_NOISE * low) else {}
    begins = [n for n in lows if n - 1 not in lows]
    if not 0 < len(begins) <= _TURNS:
        return None
    at = max(begins, key=lambda n: values[n] / lows[n])
    end = next(n for n in range(at, len(values) + 1) if n not in lows)
    if len(after := values[end : end + WINDOW]) < FEW or statistics.median(after) > (1 + _MARGIN) * lows[at]:
        return None
    where = log.file, series.lines[rows[at]], series.step[rows[at]]
    return Jump(*where, lows[at], max(values[at:end]), None, end - at, back=statistics.median(after))


def remarks(log: Printed) -> Iterator[tuple[str, Jump]]:
    """Yield (row of the report's texts, case) of what the steps show that is no fault, or none yet."""
    cases = [("rise_few", jump(log, FEW)), ("rise_norm", risen_norm(log)), ("passed", passing(log))]
    cases.append(("passed_norm", passing(log, norm=True)))
    return ((row, case) for row, case in cases if case is not None)


def change(file: str, series: Series, rows: Sequence[int], values: Sequence[float], least: int) -> Jump | None:
    """Return where the values of rows rise to a higher level for good, or finally exceed the first ones by far."""
    if len(values) < 3 * least or (case := (risen := rise(values, least)) or ascent(values)) is None:
        return None
    at, before, after = case
    sides = (rows[max(0, at - WINDOW) if risen else 0 : at], rows[at:])
    norms = [[series.norm[n] for n in side if math.isfinite(series.norm[n])] for side in sides]
    medians = (statistics.median(norms[0]), statistics.median(norms[1])) if all(norms) else None
    fell, where = bool(risen) or before < _FELL * values[0], (file, series.lines[rows[at]], series.step[rows[at]])
    return Jump(*where, before, after, medians, len(values) - at, fell, bool(risen))


def rise(values: Sequence[float], least: int) -> tuple[int, float, float] | None:
    """Return the position from which values stay higher, for at least so many, and the levels before and after it."""
    # The position at which the minimum of all later values exceeds those just before it the most.
    smooth = [statistics.median(values[max(0, n - 1) : n + 2]) for n in range(len(values))]
    first, best, at, lowest = max(least, _BEFORE + 1), -math.inf, 0, math.inf
    for n in range(len(values) - 1, first - 1, -1):
        lowest = min(lowest, smooth[n])
        gain = lowest - max(smooth[n - 1 - _BEFORE : n - 1])
        if n <= len(values) - least and gain > best:
            best, at = gain, n
    # Smoothing moves the edge by a step. The second lowest of the next values counts, as one may be an outlier.
    while at >= first and values[at - 1] > (values[at - 2] + sorted(values[at : at + WINDOW])[:2][-1]) / 2:
        at -= 1
    if at < first:
        return None
    before, after = values[max(0, at - WINDOW) : at], values[at:]
    low, high = statistics.median(before), statistics.median(after)
    noise = _MAD * statistics.median(abs(value - low) for value in before)
    if low <= 0 or high < RATIO * low or high - low < SIGMAS * max(noise, _LEAST_NOISE * low):
        return None
    if statistics.quantiles(after, n=OUTLIERS)[0] < (low + high) / 2 or _alternates(values, low, high):
        return None
    return at, low, high


def ascent(values: Sequence[float]) -> tuple[int, float, float] | None:
    """Return from where on values exceed the initial ones, if they end far above them, their minimum, and the end."""
    start, end = max(values[:_FIRST]), statistics.median(values[-WINDOW:])
    if end < _WORSE * start or min(values[-WINDOW:]) <= start or _alternates(values, min(values), end):
        return None
    at = max(n for n, value in enumerate(values) if value <= start) + 1
    return at, min(values[:at]), end


def _alternates(loss: Sequence[float], low: float, high: float) -> bool:
    """Return whether losses rise to a level several times: of two runs, an evaluation, or a sum, printed by turns."""
    near = _MARGIN * (high - low)
    return sum(a < low + near and b > high - near for a, b in pairwise(loss)) >= _TURNS


def last_run(series: Series, values: Sequence[float]) -> list[int]:
    """Return the rows of the last run in a log whose value is finite."""
    points: list[int] = []
    largest = -math.inf
    for n in (n for n, value in enumerate(values[-MOST:], max(0, len(values) - MOST)) if math.isfinite(value)):
        if series.step[n] < _FROM_START * largest:  # Another run in the same log begins with a high loss again.
            points, largest = [], series.step[n]
        points.append(n)
        largest = max(largest, series.step[n])
    return points


def _trailing(flags: Sequence[bool]) -> int:
    return next((n for n, flag in enumerate(reversed(flags)) if not flag), len(flags))
