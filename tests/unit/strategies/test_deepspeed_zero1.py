"""DeepSpeed's stage 1: replicas that reduce once a step, and parts of the update that are gathered."""

from diagnostics.contract.mesh import Mesh
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.declared import Collective, ModelShapes
from dtk.strategies.deepspeed_zero1 import DeepSpeedZero1Config

SHAPES = ModelShapes([(8, 4), (4,)], [], [])


def test_gradients_are_reduced_once_whatever_the_accumulation() -> None:
    item, four = (DeepSpeedZero1Config().declare(SHAPES, Mesh(dp_replicate=2), PrecisionConfig(), a) for a in (1, 4))
    assert item == four
    # A bucket of all 36 elements in float32, and two messages about overflow and the norm.
    assert item[0] == Collective("all_reduce", "dp", 1 + 2, 4 * 36 + 8)
    # One flat tensor of matrices and one of the rest, each padded to a multiple of 2 x ranks.
    assert item[1] == Collective("all_gather", "dp", 2, 4 * (32 + 4))


def test_flat_parts_are_padded_to_the_ranks() -> None:
    gathered = DeepSpeedZero1Config().declare(SHAPES, Mesh(dp_replicate=3), PrecisionConfig(), 1)[1]
    assert gathered.size_bytes == 4 * (36 + 6)


def test_one_rank_sends_nothing() -> None:
    assert DeepSpeedZero1Config().declare(SHAPES, Mesh(), PrecisionConfig(), 2) == []
    assert DeepSpeedZero1Config().declare_clip(Mesh(dp_replicate=2)) == ()
