"""The mesh of hsdp: replicas of shards."""

import pytest

from diagnostics.contract.mesh import Mesh
from dtk.errors import DtkError
from dtk.strategies.hsdp import HSDPConfig


@pytest.mark.parametrize(
    ("replicate", "shard", "expected"),
    [(2, -1, (2, 4)), (-1, 4, (2, 4)), (4, 2, (4, 2)), (1, -1, (1, 8)), (8, -1, (8, 1))],
)
def test_one_degree_is_what_the_other_leaves(replicate: int, shard: int, expected: tuple[int, int]) -> None:
    mesh = HSDPConfig(dp_replicate=replicate, dp_shard=shard).mesh(8)
    assert mesh == Mesh(dp_replicate=expected[0], dp_shard=expected[1]) and mesh.dp_size == 8


@pytest.mark.parametrize(
    ("replicate", "shard", "message"),
    [
        (3, -1, "valid dp_replicate x dp_shard: 8 x 1, 4 x 2, 2 x 4, 1 x 8"),
        (2, 3, "does not fit 8 ranks"),
        (0, -1, "strategy.dp_replicate=0 is not a valid mesh degree"),
        (2, -2, "strategy.dp_shard=-2 is not a valid mesh degree"),
        (-1, -1, "are both -1"),
    ],
)
def test_degrees_that_do_not_fit_are_one_line(replicate: int, shard: int, message: str) -> None:
    with pytest.raises(DtkError) as refused:
        HSDPConfig(dp_replicate=replicate, dp_shard=shard).mesh(8)
    assert message in str(refused.value)


def test_its_replicas_are_those_of_dp_replicate() -> None:
    traits = HSDPConfig().traits
    assert (traits.replicated_over, traits.gradients_in) == ("dp_replicate", "units")
    assert traits.shards_parameters and not traits.deals_out_parameters
