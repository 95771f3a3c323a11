"""initialize: a pure function of seed, name and index, with the distribution that was asked for."""

import pytest
import torch
from torch import Tensor

from dtk.config.schema import GPTConfig
from dtk.models.declared import Initial
from dtk.models.gpt import GPT
from dtk.models.initialize import BLOCK, initialize, initialize_model

NORMAL = Initial(kind="normal", std=0.02)


def values(*shape: int, name: str = "a.weight", seed: int = 1, initial: Initial = NORMAL) -> Tensor:
    parameter = torch.nn.Parameter(torch.full(shape, float("nan")))
    initialize(parameter, name, initial, seed)
    return parameter.detach()


def test_the_same_key_gives_the_same_values_whatever_the_global_generators() -> None:
    torch.manual_seed(1)
    first = values(100, 10)
    torch.manual_seed(2)
    assert torch.equal(first, values(100, 10))


def test_another_name_or_seed_gives_independent_values() -> None:
    base = values(1000, 10).flatten()
    for other in (values(1000, 10, name="b.weight"), values(1000, 10, seed=2)):
        assert not (base == other.flatten()).any()
        assert abs(torch.corrcoef(torch.stack((base, other.flatten())))[0, 1]) < 0.05


@pytest.mark.parametrize("std", [0.02, 0.02 / 24**0.5])
def test_distribution_across_several_blocks(std: float) -> None:
    flat = values(2500, 1024, initial=Initial(kind="normal", std=std)).flatten()
    assert flat.numel() > 2 * BLOCK
    # 2.5 million values: the standard error of the std is std / 2200, of the mean std / 1600.
    assert flat.std().item() == pytest.approx(std, rel=3e-3)
    assert abs(flat.mean().item()) < 4e-3 * std
    assert ((flat.abs() < std).float().mean().item()) == pytest.approx(0.6827, abs=2e-3)
    assert not torch.equal(flat[:1000], flat[BLOCK : BLOCK + 1000])


def test_values_depend_on_the_index_alone_not_on_the_shape() -> None:
    assert torch.equal(values(3000, 700).flatten(), values(2_100_000))
    assert torch.equal(values(1200, 1024).flatten()[:5000], values(5000))


@pytest.mark.parametrize(("kind", "value"), [("zeros", 0.0), ("ones", 1.0)])
def test_constants(kind: str, value: float) -> None:
    filled = values(7, initial=Initial(kind=kind))  # type: ignore[arg-type]
    assert torch.equal(filled, torch.full((7,), value))


def test_scalars_empty_tensors_and_half_precision() -> None:
    assert torch.isfinite(values())
    assert values(0, 3).shape == (0, 3)
    half = torch.empty(64, dtype=torch.bfloat16)
    initialize(half, "a.weight", NORMAL, 1)
    assert torch.equal(half, values(64).bfloat16())


def test_a_whole_model_is_filled_in_place() -> None:
    config = GPTConfig(name="t", vocab_size=50, context_length=16, layers=2, heads=2, width=16)
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    kept = dict(model.named_parameters())
    initialize_model(model, seed=3)
    assert all(p is kept[n] and p.requires_grad for n, p in model.named_parameters())
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not torch.equal(model.blocks[0].mlp.up.weight, model.blocks[1].mlp.up.weight)
    assert torch.equal(model.final_norm.weight.detach(), torch.ones(16))


def test_values_are_pinned() -> None:
    """A change here changes the start of every run: old figures would no longer be comparable."""
    expected = [-0.0077512990683317184, 0.0343586765229702, -0.032051410526037216, 0.006679418496787548]
    torch.testing.assert_close(values(4), torch.tensor(expected), atol=1e-9, rtol=1e-6)
