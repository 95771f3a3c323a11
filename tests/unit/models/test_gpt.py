"""GPT: the published sizes, causality, the tied head, FLOPs worked out by hand."""

from typing import Any

import pytest
import torch

from dtk.config.schema import GPTConfig
from dtk.models.build import build_model
from dtk.models.gpt import GPT

TINY = GPTConfig(name="tiny", vocab_size=50, context_length=16, layers=3, heads=4, width=32)
SIZES = {
    "gpt2": ((12, 12, 768), 124_439_808),
    "gpt2_medium": ((24, 16, 1024), 354_823_168),
    "gpt2_large": ((36, 20, 1280), 774_030_080),
    "gpt2_xl": ((48, 25, 1600), 1_557_611_200),
}


def on_meta(layers: int, heads: int, width: int) -> GPT:
    with torch.device("meta"):
        return GPT(GPTConfig(name="x", layers=layers, heads=heads, width=width))


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    sizes, count = SIZES[name]
    assert sum(p.numel() for p in on_meta(*sizes).parameters()) == count


def test_all_state_is_parameters_that_meta_can_hold() -> None:
    model = on_meta(2, 4, 32)
    assert list(model.buffers()) == []
    assert all(p.is_meta for p in model.parameters())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_a_token_changes_no_logits_before_it(random_model: Any) -> None:
    model = random_model(TINY)
    tokens = torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 50
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] - after[:, 9:]).abs().amax(dim=2).min() > 1e-3


def test_a_sequence_beyond_the_context_is_refused(random_model: Any) -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        random_model(TINY)(torch.zeros(1, 17, dtype=torch.long))


def test_the_token_embedding_gets_gradients_from_both_ends(random_model: Any) -> None:
    model = random_model(TINY)
    model(torch.tensor([[7, 7]]))[..., 3].sum().backward()
    rows = model.token_embedding.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert rows == [3, 7]


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    model = build_model(
        GPTConfig(name="d", vocab_size=50, context_length=16, layers=2, heads=4, width=32, dropout=0.5), []
    )
    tokens = torch.arange(16).unsqueeze(0)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_initial_values_follow_gpt2() -> None:
    model = on_meta(12, 12, 768)
    residual = 0.02 / (2 * 12) ** 0.5
    for name in ("token_embedding.weight", "position_embedding.weight", "blocks.3.attention.qkv.weight"):
        assert (model.initial(name).kind, model.initial(name).std) == ("normal", 0.02)
    for name in ("blocks.0.attention.projection.weight", "blocks.11.mlp.down.weight"):
        assert model.initial(name).std == pytest.approx(residual, rel=1e-12)
    kinds = {name: model.initial(name).kind for name, _ in model.named_parameters()}
    assert {k for n, k in kinds.items() if n.endswith("bias")} == {"zeros"}
    assert {k for n, k in kinds.items() if n.endswith("norm.weight")} == {"ones"}
    assert sum(k == "normal" for k in kinds.values()) == 2 + 12 * 4


def test_flops_of_gpt2_by_hand() -> None:
    # N = 124,439,808 - 1024 * 768 (positions) = 123,653,376; 6 N = 741,920,256; 12 L H Q T = 12 * 12 * 768 * T.
    model = on_meta(12, 12, 768)
    assert model.flops_per_token(1024) == 741_920_256 + 113_246_208
    assert model.flops_per_token(128) == 741_920_256 + 14_155_776
