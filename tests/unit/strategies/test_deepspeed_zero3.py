"""DeepSpeed's stage 3: large parameters are gathered in every micro-batch, small ones once after the update."""

import json
from pathlib import Path

import pytest

from diagnostics.contract.mesh import Mesh
from dtk.errors import DtkError
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.declared import Collective, ModelShapes
from dtk.strategies.deepspeed_zero3 import DeepSpeedZero3Config

SHAPES, MESH = ModelShapes([(9, 9), (3,)], [], []), Mesh(dp_shard=2)


def test_what_is_below_the_threshold_stays_within_a_step() -> None:
    gather, scatter, _ = DeepSpeedZero3Config().declare(SHAPES, MESH, PrecisionConfig(), 3)
    assert gather == Collective("all_gather", "dp", 2, 4 * (82 + 4)), "both are small: once, padded to the ranks"
    assert scatter == Collective("reduce_scatter", "dp", 3, 3 * 4 * (82 + 4))


def test_what_is_above_it_is_gathered_in_every_micro_batch(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"zero_optimization": {"stage3_param_persistence_threshold": 10}}))
    gather, *_ = DeepSpeedZero3Config(config=str(path)).declare(SHAPES, MESH, PrecisionConfig(), 3)
    assert gather == Collective("all_gather", "dp", 1 + 3, 4 * (4 + 3 * 82))


@pytest.mark.parametrize(("offload", "size"), [("none", 16), ("optimizer", 8)])
def test_the_norm_is_in_float64_unless_states_are_on_the_host(offload: str, size: int) -> None:
    declared = DeepSpeedZero3Config(offload=offload).declare(SHAPES, MESH, PrecisionConfig(), 1)  # type: ignore[arg-type]
    assert declared[-1] == Collective("all_reduce", "dp", 2, size)


def test_a_number_of_elements_that_is_none_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"zero_optimization": {"stage3_prefetch_bucket_size": "many"}}))
    with pytest.raises(DtkError, match="stage3_prefetch_bucket_size"):
        DeepSpeedZero3Config(config=str(path)).tuned()
