"""ZeRO stages by the library DeepSpeed and by torch: the same states are sharded under the same number."""

from contextlib import nullcontext

import pytest

from diagnostics.contract.mesh import Mesh
from dtk.config.batch import settle
from dtk.config.checks import check
from dtk.config.compose import compose
from dtk.errors import DtkError
from dtk.sharding.registry import CONFIG_TYPES
from dtk.strategies.zero3 import Zero3Config


@pytest.mark.parametrize(("stage", "more"), [(1, set()), (2, {"parameters"}), (3, set())])
def test_a_stage_shards_the_same_states_in_both(stage: int, more: set[str]) -> None:
    """Except that fully_shard, which is dtk's stage 2 as well, shards parameters between steps."""
    own, library = CONFIG_TYPES[f"zero{stage}"], CONFIG_TYPES[f"deepspeed_zero{stage}"]
    assert library.stage == stage and library.traits.library == "deepspeed"  # type: ignore[attr-defined]
    assert "optimizer_state" in own.traits.sharded and set(own.traits.sharded) == more | set(library.traits.sharded)
    assert own.traits.simplicity < library.traits.simplicity, "the library is the second choice"


def test_only_stage_3_can_move_parameters_off_the_device() -> None:
    for stage in (1, 2, 3):
        overrides = [f"strategy=deepspeed_zero{stage}", "strategy.offload=parameters"]
        config = settle(compose(overrides), 2).config
        with pytest.raises(DtkError) if stage < 3 else nullcontext() as refused:
            check(config, 2, "cuda", 2)
        assert refused is None or "its forward needs whole parameters" in str(refused.value)


def test_ranks_of_stage_1_are_replicas_and_those_of_the_others_are_shards() -> None:
    meshes = [CONFIG_TYPES[f"zero{stage}"]().mesh(4) for stage in (1, 2, 3)]
    assert meshes == [Mesh(dp_replicate=4), Mesh(dp_shard=4), Mesh(dp_shard=4)]


def test_zero3_is_fsdp_under_the_name_of_the_paper() -> None:
    section = Zero3Config()
    assert section.name == "zero3" and section.mesh(4) == Mesh(dp_shard=4)
    assert set(section.traits.sharded) == {"parameters", "gradients", "optimizer_state"}
    assert not section.traits.compared, "dtk plan compares it as fsdp"
