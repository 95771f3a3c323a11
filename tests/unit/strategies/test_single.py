"""One process on one device."""

from diagnostics.contract.mesh import Mesh
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.declared import ModelShapes
from dtk.strategies.single import SingleConfig


def test_nothing_travels() -> None:
    section = SingleConfig()
    assert section.declare(ModelShapes([(4, 4)], [], [(4, 4)]), Mesh(), PrecisionConfig(), 2) == []
    assert section.traits.one_process and section.traits.replicated_over is None
