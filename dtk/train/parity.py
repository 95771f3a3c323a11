"""What a run records before its first step, so that it can be told later whether another one began alike."""

from typing import Any

from dtk.record.parity import parity
from dtk.train.loop import Loop


def begun(loop: Loop) -> dict[str, Any]:
    """Content of parity.json; every rank must call it, before the first step."""
    context, strategy, precision = loop.context, loop.parts.strategy, loop.config.precision
    tf32 = precision.tf32 and context.device.type == "cuda"
    compute = "tf32" if tf32 else precision.compute_dtype
    whole = strategy.replicas.get(strategy.copied_over or "", [])
    return parity(loop.parts.model, context, whole, compute, strategy.reduce_dtype)
