"""One process on one device."""

from dtk.parallel.mesh import Mesh
from dtk.parallel.number_formats import PrecisionConfig
from dtk.strategies.declared import ModelShapes
from dtk.strategies.dp import DPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero3 import Zero3Config

SHAPES = ModelShapes([(4, 4)], [], [(4, 4)])


def test_single_and_dp_declare_nothing_between_processes() -> None:
    for section in (SingleConfig(), DPConfig()):
        assert section.declare(SHAPES, Mesh(), PrecisionConfig(), 2) == []
        assert section.traits.one_process and section.traits.replicated_over is None


def test_zero3_is_fsdp_under_the_name_of_the_paper() -> None:
    section = Zero3Config()
    assert section.name == "zero3" and section.mesh(4) == Mesh(dp_shard=4)
    assert set(section.traits.sharded) == {"parameters", "gradients", "optimizer_state"}
    assert not section.traits.compared, "dtk plan compares it as fsdp"
