"""Records of training steps as JSON lines: `metrics.jsonl` of a dtk run, and similar files of other trainers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.files import table_beside
from diagnostics.evidence.limits import lines_of
from diagnostics.evidence.logs.steps import LEAST, MAX_POINTS, Series, Steps
from diagnostics.evidence.metrics import Metrics
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.reader import Contents, Reader, Source
from diagnostics.runs.records import objects

KIND, METRICS = "step_records", "metrics"
KEYS: dict[str, list[str]] = table_beside(__file__)["keys"]
"""Value -> keys by which it is recorded. Only a record of a training step has both a step and a loss."""
_NAN = float("nan")
_LOOK = 2 * LEAST
"""Number of first lines of which one has to be a record of a training step."""


def _figures(record: dict[str, Any]) -> dict[str, float | None] | None:
    """Return the values of a record of a training step; None for any other record."""
    values = {name: next((record[key] for key in keys if key in record), None) for name, keys in KEYS.items()}
    if values["step"] is None or values["loss"] is None or any(isinstance(value, bool) for value in values.values()):
        return None
    try:
        return {name: None if value is None else float(value) for name, value in values.items()}
    except (ValueError, TypeError, OverflowError):
        return None


def _recognise(head: bytes) -> bool:
    lines: Iterable[bytes] = head.split(b"\n", _LOOK)[:_LOOK] if head.startswith(b"{") else ()
    return any(_figures(record) is not None for record in objects(lines))


def take(series: Series, record: dict[str, Any], number: int) -> None:
    """Add a record of a training step to a series; ignore any other record."""
    if len(series.lines) < MAX_POINTS and (figures := _figures(record)) is not None:
        series.lines.append(number)
        for name in KEYS:
            getattr(series, name).append(_NAN if figures[name] is None else figures[name])
        series.skipped.append(_NAN)
        series.printed.append(1 if figures["norm"] is None else 3)


def read(source: Source) -> Contents:
    """Return the steps of a file in the form of a log's and, for a run's own `metrics.jsonl`, its metrics."""
    series, metrics = Series(), Metrics()
    for number, line in enumerate(lines_of(source.path, source.limits), 1):
        for record in objects((line,)):
            metrics.take(record, number)
            take(series, record, number)
    steps, is_run = Steps({"records": series}), source.file == RunPaths(Path()).metrics.name
    facts = [LogFact(KIND, None, source.file, 0, "", {"steps": steps})] if steps else []
    facts += [LogFact(METRICS, None, source.file, 0, "", {"metrics": metrics})] if is_run else []
    return Contents(source.file, facts=facts)


READER = Reader(
    kind="step_records", title="step records (JSON lines)", recognise=_recognise, open=read, facts=(KIND, METRICS)
)
