"""Whether a remedy gained anything: the figures that a cause is about, before and after, against their noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MEMORY_NOISE = 0.02  # Of the peak before: peaks of two runs of the same job differ by less.
_HOST = frozenset(f"overlap.{name}" for name in ("host_bound", "pause", "sync_point", "data_bound", "instrumented"))
"""Causes whose cost is no communication."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of two runs."""

    name: str
    unit: str
    before: float
    after: float
    noise: float
    """How much the steps of one run differ: the larger of the median absolute deviations of both."""
    less_is_better: bool = True

    @property
    def gain(self) -> float:
        """By how much it became better; below zero: worse."""
        return self.before - self.after if self.less_is_better else self.after - self.before

    def __str__(self) -> str:
        """`exposed communication 27.0 -> 41.0 ms a step, noise 6.0`"""
        return f"{self.name} {self.before:,.1f} -> {self.after:,.1f}{self.unit}, noise {self.noise:,.1f}"


def of_steps(
    name: str, unit: str, before: Sequence[float], after: Sequence[float], *, less_is_better: bool = True
) -> Change | None:
    """Return the change between the medians of the steps of both runs, or None if either has no steps."""
    if not before or not after:
        return None
    noise = max(_deviation(before), _deviation(after))
    return Change(name, unit, median(before), median(after), noise, less_is_better)


def of_peak(before: float | None, after: float | None) -> Change | None:
    """Peak memory (bytes) as MiB; None where it was not measured."""
    if before is None or after is None:
        return None
    return Change("peak memory", " MiB", before / 2**20, after / 2**20, MEMORY_NOISE * before / 2**20)


def figures_of(cause: str) -> tuple[str, ...]:
    """Return the figures that show whether the remedy of a cause helps: of `exposed`, `tokens`, `memory`.

    Empty for hangs and crashes, where the remedy helps if the run finishes.
    """
    if cause.startswith("memory."):
        return ("memory",)
    if cause.startswith("overlap."):
        return ("tokens",) if cause in _HOST else ("exposed", "tokens")
    return ()


def improved(changes: Sequence[Change]) -> bool:
    """One figure at least became better beyond its noise, and none worse."""
    better = any(change.gain > change.noise for change in changes)
    return better and not any(-change.gain > change.noise for change in changes)


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return median(abs(value - middle) for value in values)
