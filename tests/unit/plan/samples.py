"""Plans made by hand, for the tests of what is made of a plan: figures are chosen, not computed."""

import dataclasses
from typing import Any

from dtk.plan.compare import VARIANTS, Comparison, Row
from dtk.plan.formulas.prediction import Memory, Prediction, Time, Traffic
from dtk.plan.job import Difference
from dtk.plan.model import Check, PlanReport
from dtk.plan.solve import Largest, Point

GIB = 1 << 30
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&[bold]\x1b[31m\u202e"
"""What the name of a model may look like."""


def plan(world_size: int = 8, gib: float = 20.0, **values: Any) -> Prediction:
    """A job under fsdp whose activations are `gib` less 8 GiB."""
    parts = {
        "parameters": 1 * GIB,
        "gathered parameters": 2 * GIB,
        "gradients": 1 * GIB,
        "optimizer states": 2 * GIB,
        "activations": int((gib - 8) * GIB),
        "logits": 2 * GIB,
    }
    memory = Memory(0, parts, "backward", {"forward": 12 * GIB, "backward": int(gib * GIB), "optimizer": 6 * GIB})
    traffic = (
        Traffic("all_gather", "dp_shard", 96, 12 * GIB, world_size, 11 * GIB, "intra_node"),
        Traffic("reduce_scatter", "dp_shard", 49, 6 * GIB, world_size, 5 * GIB, "inter_node"),
    )
    prediction = Prediction(
        engine="closed_form",
        strategy="fsdp",
        model="gpt2_xl",
        parameters=1_557_611_200,
        world_size=world_size,
        global_batch_size=4 * world_size,
        micro_batch_size=4,
        sequence_length=1024,
        memory=memory,
        traffic=traffic,
        notes=("dropout is 0",),
    )
    return dataclasses.replace(prediction, **values)


def on_device(prediction: Prediction, gib: int = 24) -> Prediction:
    """The same on a device of that size, with a time that grows a little with the ranks."""
    step_s = 0.5 + prediction.world_size / 10_000
    time = Time(0.4, 0.2, step_s - 0.4, step_s, prediction.global_batch_size * 1024 / step_s, 0.41, 0.4 / step_s)
    return dataclasses.replace(prediction, hardware="rtx4090", device_memory_bytes=gib * GIB, time=time)


def check(gib: float, *differences: Difference) -> Check:
    """The simulated engine says `gib`."""
    return Check(plan(), plan(gib=gib, engine="simulated", notes=("buffers of kernels",)), differences)


def report(**values: Any) -> PlanReport:
    """A report with every section."""
    fitting = on_device(plan())
    large = on_device(plan(gib=30.0))
    rows = tuple(
        Row(variant, (f"strategy={variant.strategy}",), fitting if n > 3 else large)
        for n, variant in enumerate(VARIANTS)
    )
    rows = (dataclasses.replace(rows[0], prediction=None, problem="it is one process"), *rows[1:])
    points = (*(Point(n, on_device(plan(n))) for n in (8, 64, 512)), Point(7, None, "7 ranks do not divide"))
    result: dict[str, Any] = {
        "job": ("strategy=fsdp", "model=gpt2_xl"),
        "plan": fitting,
        "local_size": 8,
        "compute_dtype": "bfloat16",
        "check": check(28.0, Difference("peak", 20 * GIB, 28 * GIB), Difference("all_gather", 96, 97, "calls")),
        "comparison": Comparison(rows, rows[4], ("ddp needs 30.0 GiB.", "fsdp is the simplest that fits.")),
        "scaling": points,
        "models": (Largest("deeper", ("model.layers=60",), fitting), Largest("wider", (), None)),
        "batch": Largest("micro-batch", ("train.micro_batch_size=6",), fitting),
        "notes": ("8 ranks were assumed.",),
    }
    return PlanReport(**{**result, **values})
