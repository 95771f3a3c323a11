"""`dp`: threads over the CUDA devices of one process."""

import pytest

from diagnostics.contract.mesh import Mesh
from dtk.config.checks import check_ranks
from dtk.config.compose import compose
from dtk.errors import DtkError
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.declared import ModelShapes
from dtk.strategies.dp import DPConfig
from tests.unit.rank_threads import on_ranks
from tests.unit.strategies.conftest import backward, reference, tokens, wrapped


def test_nothing_travels_between_processes() -> None:
    declared = DPConfig().declare(ModelShapes([(4, 4)], [], [(4, 4)]), Mesh(), PrecisionConfig(), 2)
    assert declared == [] and DPConfig.traits.one_process and DPConfig.traits.replicated_over is None


@pytest.mark.parametrize(("device", "devices"), [("cpu", 0), ("cuda", 1)])
def test_one_device_is_too_few(device: str, devices: int) -> None:
    config = compose(["strategy=dp", "model=gpt2_tiny"]).config
    with pytest.raises(DtkError, match="CUDA device"):
        check_ranks(config, 1, device, devices)
    check_ranks(config, 1, "cuda", 2)


def test_without_cuda_devices_its_module_computes_what_the_model_does() -> None:
    """nn.DataParallel then calls the module itself, so that gradients are those of one device."""

    def work(rank: int) -> list[list[float]]:
        parts = wrapped(DPConfig(), rank, Mesh())
        backward(parts, [tokens(0)])
        assert type(parts[2]).__name__ == "DataParallel"
        return [p.grad.flatten().tolist() for p in parts[1].parameters()]  # type: ignore[union-attr]

    (grads,) = on_ranks(1, work)
    expected = [p.grad.flatten().tolist() for p in reference([tokens(0)]).parameters()]  # type: ignore[union-attr]
    assert [x for grad in grads for x in grad] == pytest.approx([x for grad in expected for x in grad], abs=1e-6)
