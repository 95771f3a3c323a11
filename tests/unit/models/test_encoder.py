"""Encoder: padding has no influence, attention looks both ways, FLOPs worked out by hand."""

from typing import Any

import torch

from dtk.config.schema import EncoderConfig
from dtk.models.encoder import Encoder

TINY = EncoderConfig(name="tiny", vocab_size=50, context_length=16, layers=2, heads=4, width=32, classes=3)


def sample(length: int) -> torch.Tensor:
    return torch.randint(1, 50, (2, length), generator=torch.Generator().manual_seed(0))


def test_padding_has_no_effect(random_model: Any) -> None:
    model = random_model(TINY)
    tokens = sample(10)
    padded = torch.nn.functional.pad(tokens, (0, 6), value=0)
    torch.testing.assert_close(model(tokens), model(padded), atol=1e-5, rtol=1e-5)
    tail = torch.nn.functional.pad(tokens, (0, 6), value=7)
    assert (model(tail) - model(padded)).abs().max() > 1e-2


def test_samples_of_one_batch_are_padded_independently(random_model: Any) -> None:
    model = random_model(TINY)
    short, long = sample(5)[:1], sample(12)[1:]
    batch = torch.cat((torch.nn.functional.pad(short, (0, 7)), long))
    torch.testing.assert_close(model(batch), torch.cat((model(short), model(long))), atol=1e-5, rtol=1e-5)


def test_a_sample_of_padding_alone_gives_finite_logits_and_gradients(random_model: Any) -> None:
    model = random_model(TINY)
    logits = model(torch.stack((torch.zeros(8, dtype=torch.long), sample(8)[0])))
    logits.sum().backward()
    assert torch.isfinite(logits).all()
    torch.testing.assert_close(logits[0], model.head.bias)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_attention_looks_both_ways(random_model: Any) -> None:
    block = random_model(TINY).blocks[0]
    x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 5] = -changed[:, 5]
    assert (block(x)[:, 0] - block(changed)[:, 0]).abs().max() > 1e-4


def test_flops_count_blocks_only() -> None:
    # Per block: qkv 32*96+96, projection 32*32+32, mlp 32*128+128 and 128*32+32, two norms of 64; then the last norm.
    block = (32 * 96 + 96) + (32 * 32 + 32) + (32 * 128 + 128) + (128 * 32 + 32) + 128
    assert Encoder(TINY).flops_per_token(16) == 6 * (2 * block + 64) + 12 * 2 * 32 * 16
