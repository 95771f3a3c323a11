"""Compares the predictions of a run's plan with the measurements."""

from collections.abc import Mapping
from typing import Any

from diagnostics.contract.files import table_beside
from diagnostics.runs.records import as_mapping, number

FIGURES: list[tuple[str, str]] = [*table_beside(__file__).items()]
"""Title of each figure, and its name among the metrics."""


def planned_and_measured(
    plan: Mapping[str, Any], figures: Mapping[str, Any]
) -> list[tuple[str, str, float, float | None]]:
    """Return title, metric name, planned and measured value (None if not recorded) of each planned figure."""
    traffic = plan.get("traffic")
    sent = [number(as_mapping(item).get("size_bytes")) for item in traffic] if isinstance(traffic, list) else [None]
    planned = {
        "peak_memory_bytes": number(plan.get("peak_bytes")),
        "step_time_s": number(as_mapping(plan.get("time")).get("step_s")),
        "communicated_bytes_per_step": None if None in sent else sum(value for value in sent if value is not None),
    }
    planned_figures = [(title, name, value) for title, name in FIGURES if (value := planned[name]) is not None]
    return [(title, name, value, number(figures.get(name))) for title, name, value in planned_figures]
