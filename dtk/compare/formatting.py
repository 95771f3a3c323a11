"""Formats the figures of a comparison. Knows no run."""

import math

from diagnostics.contract.formatting import bytes_text, seconds_text
from dtk.compare.statistics import Estimate


def value_text(value: float, unit: str) -> str:
    """Return one figure with its unit: `3,413 tokens/s`, `301 ms`, `369 MiB`, `41.2%`, `12.3 J`."""
    if unit == "bytes":
        return bytes_text(value)
    if unit == "s":
        return seconds_text(value)
    return f"{value:.1%}" if unit == "fraction" else f"{number_text(value)} {unit}"


def number_text(value: float) -> str:
    """Return `412,345`, `41.2`, `0.00123`."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interval_text(estimate: Estimate, unit: str) -> str:
    """Return `3,300 to 3,500 tokens/s`; nothing without an interval."""
    return "" if estimate.low is None or estimate.high is None else range_text(estimate.low, estimate.high, unit)


def range_text(low: float, high: float, unit: str) -> str:
    """Return `3,300 to 3,500 tokens/s`, `1.2 to 1.4 s`."""
    first, last = value_text(low, unit), value_text(high, unit)
    *_, end = last.rpartition(" ")
    return f"{first.removesuffix(f' {end}') if first.endswith(f' {end}') else first} to {last}"


def ratio_text(ratio: Estimate | None) -> str:
    """Return `0.76x (0.74 to 0.79)`."""
    return "" if ratio is None else f"{times_text(ratio.median)}{bounds_text(ratio)}"


def bounds_text(ratio: Estimate) -> str:
    """Return ` (0.74 to 0.79)`; nothing without an interval."""
    span = ratio.span(_short, " to ")
    return f" ({span})" if span else ""


def times_text(value: float) -> str:
    """Return `1.31x`"""
    return f"{_short(value)}x"


def _short(value: float) -> str:
    if not math.isfinite(value) or value > 1e6:
        return "over 1,000,000"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"
