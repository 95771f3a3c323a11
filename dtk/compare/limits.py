"""`--fail-if slower=2%`: whether runs exceed a baseline by more than a limit, for CI. Reads no file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtk.compare import steps
from dtk.compare.figures import QUANTITIES
from dtk.compare.model import Comparison, RunRecord
from dtk.compare.statistics import FEWEST, Estimate, estimate
from dtk.errors import DtkError

KINDS = {"slower": "step_time_s", "memory": "peak_memory_bytes"}
"""What a limit is on -> key of the figure; both are better when they are less."""


def parse_limit(text: str) -> tuple[str, float]:
    """Return kind and factor of `slower=2%`.

    Raises:
        DtkError: it is no limit.
    """
    match = re.fullmatch(rf"({'|'.join(KINDS)})=(\d{{1,6}}(?:\.\d{{1,6}})?)%", text)
    if match is None:
        fix = f"write KIND=PERCENT: {', '.join(f'{k}=2%' for k in KINDS)}"
        raise DtkError(f"--fail-if {text} is not a limit", fix=fix)
    return match[1], 1 + float(match[2]) / 100


def check_limits(comparison: Comparison, baseline: Path, limits: Sequence[str]) -> list[dict[str, Any]]:
    """Hold the runs against the baseline. A limit fails when the whole 95% interval of the ratio lies above it.

    Args:
        comparison: of the baseline and the runs.
        baseline: folder of a run.
        limits: as typed.

    Returns:
        for each limit: the limit, ratio, low, high (null = too few values), failed, decided.

    Raises:
        DtkError: no limit; the baseline, or everything else, has no figures.
    """
    runs = [run for variant in comparison.variants for run in variant.compared]
    before = [run for run in runs if run.path.resolve() == baseline.resolve()]
    after = [run for run in runs if run not in before]
    if not before or not after:
        which = "the baseline" if not before else "no run beside the baseline"
        raise DtkError(f"{which} {'lacks' if not before else 'has'} figures", "see dtk show", "name runs that finished")
    results = []
    for text in limits:
        kind, most = parse_limit(text)
        old, new = (_estimate(side, KINDS[kind], min(len(before), len(after)), comparison) for side in (before, after))
        low, high = (None, None) if None in (old.low, new.low) else (new.low / old.high, new.high / old.low)  # type: ignore[operator]
        ratio = new.median / old.median
        failed = ratio > most if kind == "memory" else low is not None and low > most
        decided = failed or kind == "memory" or (high is not None and high <= most)
        results.append({"limit": text, "ratio": ratio, "low": low, "high": high, "failed": failed, "decided": decided})
    return results


def _estimate(runs: Sequence[RunRecord], key: str, repeats: int, comparison: Comparison) -> Estimate:
    """Return median and interval of a figure on one side: over its runs, or over the steps of its runs."""
    read, warmup = next(quantity[3] for quantity in QUANTITIES if quantity[0] == key), comparison.warmup_steps
    values = [value for run in runs if (value := read(run, warmup)) is not None]
    if key == "step_time_s" and repeats < FEWEST:  # An interval over so few runs says nothing.
        values = [w.step_time_s for run in runs for w in steps.measured(run, warmup) if w.step_time_s is not None]
    if not values:
        raise DtkError(f"{runs[0].path} has no {key}", fix="record it: record=light")
    return estimate(values)


def limit_text(result: dict[str, Any]) -> str:
    """Return one line: `FAIL slower=2%: 1.08 times the baseline (95% interval 1.05 to 1.11)`."""
    word = "FAIL" if result["failed"] else "ok" if result["decided"] else "undecided"
    interval = "" if result["low"] is None else f" (95% interval {result['low']:.3f} to {result['high']:.3f})"
    more = "" if result["decided"] else ": more steps, or three repeats of each, would decide it"
    return f"{word:<9} {result['limit']}: {result['ratio']:.3f} times the baseline{interval}{more}"
