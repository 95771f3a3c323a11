"""Weights and optimizer states of every layout, read under every other one: those that were written, bit for bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dtk.config import schema
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

TRAIN = replace(config().train, steps=3, global_batch_size=8)
MODEL = replace(config().model, layers=4)


def case(strategy: Any, **parallel: Any) -> dict[str, Any]:
    sections = {"model": MODEL, "train": TRAIN, "checkpoint": schema.CheckpointConfig(at_end=True)}
    return {**sections, "strategy": strategy, "parallel": schema.ParallelConfig(**parallel)}


SINGLE = {"single": case(SingleConfig())}
TWO = {"fsdp, tp 2": case(FSDPConfig(), tp=2), "ddp, pp 2": case(DDPConfig(), pp=2)}
FOUR = {
    "zero1, dp 4": case(Zero1Config()),
    "fsdp, dp 2, tp 2": case(FSDPConfig(), tp=2),
    "zero1, pp 2, tp 2": case(Zero1Config(), pp=2, tp=2),
    "fsdp, pp 2, dp 2": case(FSDPConfig(), pp=2, schedule="interleaved_1f1b", stages_per_rank=2),
    "hsdp 2 x 1, ulysses 2": case(HSDPConfig(dp_replicate=2), cp=2, context="ulysses"),
}


def whole(ranks: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Put the ranks' parts together; what several ranks hold must be the same bits, and nothing may be missing."""
    bits: dict[str, np.ndarray] = {}
    kept: dict[str, np.ndarray] = {}
    for parts in ranks:
        for name, (shape, box, values) in parts.items():
            own = values.view(f"u{values.itemsize}")
            full = bits.setdefault(name, np.zeros(shape, own.dtype))
            expected = kept.setdefault(name, np.zeros(shape, bool))
            assert (full[box] == own)[expected[box]].all(), f"replicas of {name} differ"
            full[box], expected[box] = own, True
    assert all(result.all() for result in kept.values()), [name for name, result in kept.items() if not result.all()]
    return bits


@pytest.mark.parametrize(
    ("world_size", "layouts"),
    [
        pytest.param(2, TWO, id="3x3", marks=pytest.mark.timeout(120)),
        pytest.param(4, FOUR, id="6x6", marks=[pytest.mark.extended, pytest.mark.timeout(600)]),
    ],
)
def test_every_layout_reads_what_every_other_one_wrote(world_size: int, layouts: dict[str, Any], tmp_path: Any) -> None:
    run, folder = "tests.dist.matrix_ranks:parts", str(tmp_path)
    sides = ((1, SINGLE), (world_size, layouts))
    written: dict[str, dict[str, np.ndarray]] = {}
    for ranks, cases in sides:
        result = run_ranks(run, ranks, cases, folder)
        written |= {name: whole([parts[name] for parts in result]) for name in cases}
    moments = [name for name in written["single"] if name.endswith(".exp_avg")]
    assert len(written["single"]) == 4 * len(moments), "a parameter, its two moments and their step"
    for ranks, cases in sides:
        read = run_ranks(run, ranks, cases, folder, tuple(written))
        for source, name in read[0]:
            back = whole([parts[source, name] for parts in read])
            assert back.keys() == written[source].keys()
            wrong = [key for key, values in back.items() if not np.array_equal(values, written[source][key])]
            assert not wrong, f"{source} -> {name}: {wrong}"
