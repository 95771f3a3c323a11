"""The final figures of a run, each with its definition."""

import statistics
from typing import Any

from dtk.data.dataset import Dataset
from dtk.record.metrics import DEFINITIONS
from dtk.train.loop import Loop


def summarise(loop: Loop, dataset: Dataset) -> dict[str, Any]:
    """Content of summary.json on rank 0; speed is the median over logged steps without the first two."""
    speeds = loop.speeds[2:] or loop.speeds
    figures: dict[str, Any] = {
        **{key: value for key, value in loop.last.items() if key not in ("lr", "grad_norm")},
        "parameters": loop.parts.parameter_count,
        "world_size": loop.context.world_size,
        "synthetic_data": bool(dataset.describe().get("synthetic")),
    }
    if speeds:
        step_time_s, mfus = statistics.median(s for s, _ in speeds), [m for _, m in speeds if m is not None]
        figures["step_time_s"] = step_time_s
        figures["tokens_per_s"] = loop.measures.tokens_per_step / step_time_s
        figures["mfu"] = statistics.median(mfus) if mfus else None
        figures["steps_measured"] = len(speeds)
    return {
        "schema_version": 1,
        "figures": figures,
        "definitions": {key: DEFINITIONS[key] for key in figures if key in DEFINITIONS},
    }
