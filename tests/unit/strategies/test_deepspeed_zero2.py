"""DeepSpeed's stage 2: as stage 1, but gradients are reduced in every micro-batch, as no rank keeps them whole."""

from diagnostics.contract.mesh import Mesh
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.declared import Collective, ModelShapes
from dtk.strategies.deepspeed_zero1 import DeepSpeedZero1Config
from dtk.strategies.deepspeed_zero2 import DeepSpeedZero2Config

SHAPES, MESH = ModelShapes([(8, 4), (4,)], [], []), Mesh(dp_replicate=2)


def test_gradients_are_reduced_in_every_micro_batch() -> None:
    first, second = (
        kind().declare(SHAPES, MESH, PrecisionConfig(), 3) for kind in (DeepSpeedZero1Config, DeepSpeedZero2Config)
    )
    assert second[0] == Collective("all_reduce", "dp", 3 + 2, 3 * 4 * 36 + 8)
    assert second[1] == first[1], "what is gathered after the update is the same"


def test_both_stages_have_replicas_and_this_one_shards_gradients_too() -> None:
    assert DeepSpeedZero2Config().mesh(4) == DeepSpeedZero1Config().mesh(4) == Mesh(dp_replicate=4)
    assert set(DeepSpeedZero2Config.traits.sharded) - set(DeepSpeedZero1Config.traits.sharded) == {"gradients"}
