"""Stage 2 is what keeps gathered parameters; with resharding it would be stage 3, by its name or another."""

import pytest

from diagnostics.contract.mesh import Mesh
from dtk.config.schema import PrecisionConfig
from dtk.errors import DtkError
from dtk.sharding.declared import ModelShapes
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.zero2 import Zero2Config
from dtk.strategies.zero3 import Zero3Config

SHAPES = ModelShapes([(8, 4), (8, 4), (6,)], [[(8, 4)], [(8, 4)]], [(6,)])


def test_resharding_is_refused() -> None:
    Zero2Config().check()
    with pytest.raises(DtkError, match="is ZeRO-3"):
        Zero2Config(reshard_after_forward=True).check()


def test_parameters_are_gathered_once_where_zero3_gathers_twice() -> None:
    two, three, fsdp = (
        section.declare(SHAPES, Mesh(dp_shard=2), PrecisionConfig(), 2)
        for section in (Zero2Config(), Zero3Config(), FSDPConfig())
    )
    assert three == fsdp, "one strategy under two names"
    assert (two[0].count, three[0].count) == (2 * 3, 2 * 5), "the root unit is gathered once"
    assert two[1:] == three[1:]
    assert Zero2Config.traits.keeps_gathered and not Zero3Config.traits.keeps_gathered
