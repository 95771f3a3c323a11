"""What a run records of itself: how it began, to compare it with others, and its final figures with definitions."""

import statistics
from typing import Any

from dtk.data.dataset import Dataset
from dtk.parallel.control import list_over_ranks
from dtk.record.memory import peak_memory_bytes
from dtk.record.metrics import DEFINITIONS
from dtk.record.parity import parity
from dtk.train.loop import Loop


def begun(loop: Loop) -> dict[str, Any]:
    """Return the content of parity.json; every rank must call it, before the first step."""
    context, strategy, precision = loop.context, loop.parts.strategy, loop.config.precision
    tf32 = precision.tf32 and context.device.type == "cuda"
    compute = "tf32" if tf32 else precision.compute_dtype
    return parity(loop.parts.model, context, strategy, compute)


def summarise(loop: Loop, dataset: Dataset) -> dict[str, Any]:
    """Content of summary.json; every rank must call it. Speed is the median over logged steps without the first two."""
    speeds = list(loop.speeds)[2:] or list(loop.speeds)
    figures: dict[str, Any] = {
        **{key: value for key, value in loop.last.items() if key not in ("lr", "grad_norm", "samples_hash")},
        "peak_memory_bytes_per_rank": list_over_ranks(loop.context, peak_memory_bytes(loop.context.device)),
        "parameters": loop.parts.parameter_count,
        "world_size": loop.context.world_size,
        "synthetic_data": bool(dataset.describe().get("synthetic")),
    }
    if speeds:
        step_time_s, mfus = statistics.median(s for s, _ in speeds), [m for _, m in speeds if m is not None]
        figures |= {"step_time_s": step_time_s, "tokens_per_s": loop.measures.tokens_per_step / step_time_s}
        figures |= {"mfu": statistics.median(mfus) if mfus else None, "steps_measured": len(speeds)}
    return {
        "schema_version": 1,
        "figures": figures,
        "speed_unit": loop.config.data.unit,
        "definitions": {key: DEFINITIONS[key] for key in [*figures, "lr", "grad_norm"] if key in DEFINITIONS},
    }
