"""`--fail-if slower=2%`: whether runs exceed a baseline by more than a limit, for CI. Reads no file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtk.compare.figures import READ, ratio_of, times_s
from dtk.compare.model import Comparison, RunRecord
from dtk.compare.statistics import estimate
from dtk.errors import Errors

_errors = Errors(__file__)
KINDS = {"slower": "step_time_s", "memory": "peak_memory_bytes"}
"""Kind of limit -> key of the value; for both, less is better."""


def parse_limit(text: str) -> tuple[str, float]:
    """Return the kind and the factor of a limit such as `slower=2%`; DtkError if the text is not a limit."""
    match = re.fullmatch(rf"({'|'.join(KINDS)})=(\d{{1,6}}(?:\.\d{{1,6}})?)%", text)
    if match is None:
        raise _errors("form", text=text, examples=", ".join(f"{kind}=2%" for kind in KINDS))
    return match[1], 1 + float(match[2]) / 100


def check_limits(comparison: Comparison, baseline: Sequence[Path], limits: Sequence[str]) -> list[dict[str, Any]]:
    """Hold each variant against the baseline. A limit fails when the whole 95% interval of the ratio lies above it.

    Return for each limit and variant: the limit, variant, ratio, low, high (null = too few values), failed, decided.
    DtkError if there is no limit, or the baseline, or everything else, has no figures.
    """
    folders = {path.resolve() for path in baseline}
    before = [run for variant in comparison.variants for run in variant.compared if run.path.resolve() in folders]
    sides = [(v.label, [run for run in v.compared if run not in before]) for v in comparison.variants]
    sides = [(label, runs) for label, runs in sides if runs]
    _errors.refuse({"no_baseline": not before, "no_others": not sides})
    results = []
    for text in limits:
        kind, most = parse_limit(text)
        for label, after in sides:
            ratio, low, high = _ratio(KINDS[kind], after, before)
            failed = ratio > most if kind == "memory" else low is not None and low > most
            decided = failed or kind == "memory" or (high is not None and high <= most)
            result = {"ratio": ratio, "low": low, "high": high, "failed": failed, "decided": decided}
            results.append({"limit": text, "variant": label, **result})
    return results


def _ratio(
    key: str, after: Sequence[RunRecord], before: Sequence[RunRecord]
) -> tuple[float, float | None, float | None]:
    """Return the ratio shown in the table, and its interval over the runs, or over the steps if there are few runs."""
    ratio = ratio_of(READ[key], after, before)
    if ratio is None:
        raise _errors("no_figure", before=before[0].path, after=after[0].path, key=key)
    if key != "step_time_s" or ratio.low is not None:
        return ratio.median, ratio.low, ratio.high
    pairs = zip(*zip(after, before))  # The pairs that form the ratio.
    new, old = (estimate([each for run in runs for each in times_s(run)]) for runs in pairs)
    if None in (new.low, old.low):
        return ratio.median, None, None
    return ratio.median, min(ratio.median, new.low / old.high), max(ratio.median, new.high / old.low)  # type: ignore[operator]


def limit_row(result: dict[str, Any]) -> tuple[str, str]:
    """Return `FAIL` and `slower=2%: ddp takes 1.08 times the baseline (95% interval 1.05 to 1.11)`."""
    word = "FAIL" if result["failed"] else "ok" if result["decided"] else "undecided"
    interval = "" if result["low"] is None else f" (95% interval {result['low']:.3f} to {result['high']:.3f})"
    more = "" if result["decided"] else ": more steps, or three repeats of each, would decide it"
    ratio = f"{result['variant']} takes {result['ratio']:.3f} times the baseline"
    return word, f"{result['limit']}: {ratio}{interval}{more}"
