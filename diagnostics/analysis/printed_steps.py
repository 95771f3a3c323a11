"""Symptoms in the steps that a trainer printed: endless overflow, figures that stay non-finite, a loss that jumps."""

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from diagnostics.evidence.logs.steps import Series, Steps
from diagnostics.evidence.model import Evidence, RankError

STEPS = ("steps", "trainer_steps", "step_records")
"""Kinds of facts: of a log, of the state that Hugging Face's Trainer saves, of records as JSON lines."""
WINDOW = 20  # Steps before a jump by which it is measured.
LEAST_AFTER = 10
"""Steps for which a figure has to stay where it went: a spike that training recovers from is none of these."""
_HIDDEN = 3  # Steps with a norm that is not finite and a loss of exactly 0; a single one is a skipped step of float16.
RATIO = 1.5  # Of the loss after a jump to the one before. A new batch, data set or learning rate moves it by less.
SIGMAS = 10.0  # Of the noise before a jump, so that noisy losses (RL, small batches) do not count.
_FIRST = 3  # Steps at the highest of which a loss begins, as batches differ.
_WORSE = (
    2.0  # Of the last losses to that: no order of samples and no schedule makes a model so much worse than untrained.
)
_FULL = 1.0  # A loss that begins below it may be built up of terms that are 0 at first: a KL term of RL, a penalty.
_FELL = 0.9  # Of the first loss: below it the model had learnt something.
MOST = 50_000  # Last steps that are looked at.
SCALE_ENDS = 1.0  # Loss scale at which halving has used up the room: DeepSpeed's minimum. A warm-up ends far above it.
_LOWEST = 3  # Skipped steps at or below that scale.
_FALL, _WORKED, _CLOSE = 6, 2.0**12, 4
"""Skipped steps in a row, each so many lines behind the one before at most, by which a loss scale at which training had
worked fell to it. A scale that is still to be found begins above, mostly at 2 ** 16."""
_FROM_START = 0.5  # Of the largest step: a step below it is that of another run, or of another epoch.


class Printed(Struct, frozen=True):
    """The steps that one trainer printed into one log."""

    file: str
    steps: Steps
    """Those of all trainers."""
    trainer: str = ""
    """Empty where only overflows were printed."""

    @property
    def series(self) -> Series | None:
        """Those of this trainer."""
        return self.steps.series.get(self.trainer)

    def is_comparable(self, other: "Printed") -> bool:
        """Whether losses are of one kind: two trainers that print into the same logs may sum them differently."""
        return self.trainer == other.trainer or not self.steps.series.keys() & other.steps.series.keys()


class PrintedSteps(Struct, frozen=True):
    """What the causes of numerics are decided from, where a job printed its steps."""

    logs: tuple[Printed, ...]
    errors: tuple[RankError, ...]
    known_task: bool = False
    """Whether they are of one of dtk's own tasks, whose loss training is to make smaller."""

    @property
    def count(self) -> int:
        """Steps of the log with most of them: every rank, and a file of records, may have the same ones."""
        return max((len(log.series.lines) for log in self.logs if log.series is not None), default=0)


class Skipped(Struct, frozen=True):
    """Steps that were skipped one after the other until the log ends."""

    file: str
    line: int
    """Of the first."""
    count: int
    scale: float
    """The last loss scale; NaN = not printed."""


class NonFinite(Struct, frozen=True):
    """Steps up to the end of the log whose loss or gradient norm is not finite."""

    figure: str
    line: int
    """Of the first."""
    count: int
    lasting: bool
    """Whether training cannot recover from them: fewer may be a batch that is skipped, or a step of float16."""


class Jump(Struct, frozen=True):
    """A loss that went up at once and stayed there."""

    file: str
    line: int
    step: float
    """Number of the step, or the epoch; NaN = not printed."""
    before: float
    after: float
    norms: tuple[float, float] | None
    """Gradient norm before and after it."""
    steps_after: int
    fell: bool = True
    """Whether the loss had fallen before."""
    at_once: bool = True
    """False: it climbed from below where it began to far above."""


def printed_steps(evidence: Evidence) -> PrintedSteps:
    """Return the steps of all logs; of a log with several trainers first those of the one that printed most."""
    logs = []
    for fact in (fact for fact in evidence.facts if fact.kind in STEPS):
        steps: Steps = fact.fields["steps"]
        by_length = sorted(steps.series, key=lambda trainer: (-len(steps.series[trainer].lines), trainer))
        logs += [Printed(fact.file, steps, trainer) for trainer in by_length or [""]]
    run = evidence.run if evidence.run is not None and evidence.run.manifest.get("launcher") != "own" else None
    # Whether the loss is that of a task of dtk: a user's own task or loop may have any, such as a reward.
    is_known = run is not None and isinstance(run.get("task.name"), str) and run.get("task._target_") is None
    return PrintedSteps(tuple(logs), tuple(evidence.errors), is_known)


def skipped_to_the_end(log: Printed) -> Skipped | None:
    """Return the steps that overflowed until the log ends, so that nothing was learnt any more."""
    steps, series = log.steps, log.series
    low = [n for n, scale in enumerate(steps.overflow_scales) if scale <= SCALE_ENDS]
    if low and steps.overflow_lines[-1] + LEAST_AFTER > steps.last:
        before = steps.overflow_lines[: low[0] + 1]
        run = _trailing([b - a <= _CLOSE for a, b in pairwise(before)])
        fell = run if run >= _FALL and steps.overflow_scales[low[0] - run] < _WORKED else 0
        if len(low) >= _LOWEST or fell:
            return Skipped(log.file, before[-1 - fell], fell + len(low), steps.overflow_scales[-1])
    if series is None:
        return None
    rows = zip(series.skipped, series.printed, strict=True)
    if not (run := _trailing([bool(skip > 0) and not bits & 1 for skip, bits in rows])):
        return None
    scale, count = series.scale[-1], int(sum(series.skipped[-run:]))  # A row of Megatron-LM counts its steps.
    # Before the first step of all a loss scale of 2 ** 32 takes many steps in a row to be found.
    lasting = run >= LEAST_AFTER or (count >= LEAST_AFTER and (any(series.printed[:-run]) or scale <= SCALE_ENDS))
    return Skipped(log.file, series.lines[-run], count, scale) if lasting else None


def non_finite_to_the_end(log: Printed) -> NonFinite | None:
    """Return the steps whose gradient norm or loss is not finite until the log ends; those that last before others."""
    if (series := log.series) is None:
        return None
    jumps = []
    for name, values, bit in (("loss", series.loss, 1), ("grad_norm", series.norm, 2)):
        rows = zip(values, series.printed, strict=True)
        run = _trailing([bool(bits & bit) and not math.isfinite(value) for value, bits in rows])
        # Hugging Face's trainer prints 0 in place of a loss that is not finite.
        hidden = run >= _HIDDEN and not any(series.loss[1 - _HIDDEN :])  # The first norm is of a loss that was finite.
        # Told not to be skipped; NaN = not told.
        applied = bit == 2 and run >= _HIDDEN and not any(series.skipped[-_HIDDEN:])
        if run:
            jumps.append(NonFinite(name, series.lines[-run], run, run >= LEAST_AFTER // 2 or hidden or applied))
    return max(jumps, key=lambda case: case.lasting, default=None)


def jump(log: Printed) -> Jump | None:
    """Return the jump of the loss that the log does not recover from."""
    if (series := log.series) is None or len(points := _last_run(series)) < WINDOW + LEAST_AFTER:
        return None
    loss = [series.loss[n] for n in points]
    at = _parting(loss)
    before, after = loss[at - WINDOW : at], loss[at:]
    low, high = statistics.median(before), statistics.median(after)
    noise = 1.4826 * statistics.median(abs(value - low) for value in before)
    if low <= 0 or high < RATIO * low or high - low < SIGMAS * max(noise, 1e-3 * low):
        return None
    if statistics.quantiles(after, n=10)[0] < (low + high) / 2:
        return None
    both, here = _norms(series, points[at - WINDOW : at], points[at:]), points[at]
    return Jump(log.file, series.lines[here], series.step[here], low, high, both, len(after))


def climb(log: Printed) -> Jump | None:
    """Return where the loss went above that of the first steps for good, if it ends far above: worse than untrained."""
    if (series := log.series) is None or len(points := _last_run(series)) < WINDOW + LEAST_AFTER:
        return None
    loss = [series.loss[n] for n in points]
    start, end = max(loss[:_FIRST]), statistics.median(loss[-WINDOW:])
    if start < _FULL or end < _WORSE * start or min(loss[-WINDOW:]) <= start:
        return None
    at = max(n for n, value in enumerate(loss) if value <= start) + 1
    both, here, low = _norms(series, points[:at], points[at:]), points[at], min(loss[:at])
    fell = low < _FELL * loss[0]
    return Jump(log.file, series.lines[here], series.step[here], low, end, both, len(loss) - at, fell, at_once=False)


def _norms(series: Series, *sides: Sequence[int]) -> tuple[float, float] | None:
    """Return the medians of the gradient norm before and behind a step, where both were printed."""
    norms = [[series.norm[n] for n in side if math.isfinite(series.norm[n])] for side in sides]
    return (statistics.median(norms[0]), statistics.median(norms[1])) if all(norms) else None


def _last_run(series: Series) -> list[int]:
    """Return the positions of the finite losses of the last run in a log."""
    points: list[int] = []
    largest = -math.inf
    for n in range(max(0, len(series.lines) - MOST), len(series.lines)):
        if math.isfinite(series.loss[n]):
            if series.step[n] < _FROM_START * largest:  # Another run in the same log has a high loss again.
                points, largest = [], series.step[n]
            points.append(n)
            largest = max(largest, series.step[n])
    return points


def _trailing(flags: Sequence[bool]) -> int:
    return next((n for n, flag in enumerate(reversed(flags)) if not flag), len(flags))


def _parting(loss: Sequence[float]) -> int:
    """Return the position behind which all losses lie highest above those just before it."""
    smooth = [statistics.median(loss[max(0, n - 1) : n + 2]) for n in range(len(loss))]
    best, at, lowest = -math.inf, WINDOW, math.inf
    for n in range(len(loss) - 1, WINDOW - 1, -1):
        lowest = min(lowest, smooth[n])
        rise = lowest - max(smooth[n - 5 : n - 1])
        if n <= len(loss) - LEAST_AFTER and rise > best:
            best, at = rise, n
    # Smoothing moved the edge by a step. The lowest value behind it counts, but for one outlier.
    while at > WINDOW and loss[at - 1] > (loss[at - 2] + sorted(loss[at : at + WINDOW])[:2][-1]) / 2:
        at -= 1
    return at
