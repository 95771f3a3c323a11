"""Mixture of experts: published sizes, the logits of transformers' Mixtral, routing, capacity and auxiliary losses."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dtk.config.compose import compose
from dtk.config.schema import MoEConfig
from dtk.models.build import build_model
from dtk.models.moe import Answer, MixtureMLP, even_counts

TINY = MoEConfig(
    name="tiny", vocab_size=50, context_length=16, layers=2, heads=8, kv_heads=2, width=32, ffn_width=48,
    experts=4, expert_width=24,
)  # fmt: skip
EXPERT = 3 * 7168 * 2048
"""Parameters of an expert of DeepSeek-V3."""
LATENT = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168 + 1536 + 512
"""Of its attention (section 4.2: query compression 1536, that of keys and values 512, 128 heads of 128, 64 more)."""
PLAIN = 4 * 7168 * 7168
BIASES = 58 * 256
"""By which its router balances the experts."""


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # Jiang et al. 2024, table 1: 47B and 13B; the released checkpoint has 46,702,792,704.
        ("mixtral_8x7b", 46_702_792_704, 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336),
        # DeepSeek-AI 2024: 671B and 37B, with the attention and the biases that are not here.
        ("deepseek_v3_like", 671_026_419_200, 671_026_419_200 - 58 * 248 * EXPERT),
    ],
)
def test_the_shipped_shapes_have_the_published_parameters(name: str, total: int, active: int) -> None:
    config = compose([f"model={name}"]).config.model
    other = 61 * (PLAIN - LATENT) - BIASES if name.startswith("deepseek") else 0
    with torch.device("meta"):
        model: Any = build_model(config, [])
    assert sum(p.numel() for p in model.parameters()) == total + other
    looked_up = config.vocab_size * config.width
    assert model.flops_per_token(0) == 6 * (active + other - looked_up)
    assert [round(count / 1e9) for count in (total, active - looked_up)] == ([47, 13] if other == 0 else [671, 37])


def test_logits_equal_those_of_transformers(random_model: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf (transformers)")
    model = random_model(TINY)
    theirs = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=2,
            num_local_experts=4,
            num_experts_per_tok=2,
            max_position_embeddings=16,
            rope_theta=TINY.rope_theta,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            sliding_window=None,
        )
    ).eval()
    words = {
        "token_embedding": "embed_tokens",
        "final_norm": "norm",
        "blocks": "layers",
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "attention.projection": "self_attn.o_proj",
        **{f"attention.{name}": f"self_attn.{name}_proj" for name in "qkv"},
        "mlp.router": "mlp.gate",
        "experts.down": "experts.down_proj",
    }
    state = {}
    ours = {
        name: value.unflatten(0, (4, -1)) if ".experts." in name else value
        for name, value in model.state_dict().items()
    }
    for name, value in ours.items():
        if name.endswith("experts.up"):
            continue
        if name.endswith("experts.gate"):
            value = torch.cat((value, ours[name.removesuffix("gate") + "up"]), 1)
            name = name.removesuffix("gate") + "gate_up_proj"
        for word, other in words.items():
            name = name.replace(word, other)
        state["lm_head.weight" if name == "head.weight" else f"model.{name}"] = value
    theirs.load_state_dict(state)
    tokens = torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(tokens), theirs(tokens).logits, atol=1e-4, rtol=0)


def mixture(config: MoEConfig, random_model: Any) -> tuple[MixtureMLP, torch.Tensor]:
    mlp = random_model(config).blocks[-1].mlp.train()
    return mlp, torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("chosen", [1, 2, 3])
def test_each_token_gets_the_weighted_sum_of_its_experts(chosen: int, random_model: Any) -> None:
    mlp, x = mixture(replace(TINY, experts_per_token=chosen, shared_experts=2), random_model)
    y, _, loads = mlp(x)
    weights, experts = (x @ mlp.router.weight.T).softmax(-1).topk(chosen)
    if chosen > 1:
        weights = weights / weights.sum(-1, keepdim=True)
    parts = [each.unflatten(0, (4, -1)) for each in (mlp.experts.gate, mlp.experts.up, mlp.experts.down)]
    for at in [(0, 0), (1, 7), (1, 15)]:
        expected = mlp.shared(x[at])
        for weight, number in zip(weights[at], experts[at]):
            gate, up, down = (part[number] for part in parts)
            expected = expected + weight * (down @ (torch.nn.functional.silu(gate @ x[at]) * (up @ x[at])))
        torch.testing.assert_close(y[at], expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(loads[0], loads[1])
    assert torch.equal(loads[0], torch.bincount(experts.flatten(), minlength=4))


def test_a_full_expert_drops_the_last_choices_first_and_evaluation_drops_none(random_model: Any) -> None:
    whole, x = mixture(TINY, random_model)
    full, _ = mixture(replace(TINY, capacity_factor=0.5), random_model)
    y, _, loads = full(x)
    assert loads[1].max() == 8  # 32 tokens, 2 choices each, 4 experts, half of an even share.
    assert torch.equal(loads[1], loads[0].clamp(max=8))
    first = (x.flatten(0, 1) @ full.router.weight.T).argmax(-1)
    kept = torch.stack([(first[: i + 1] == first[i]).sum() <= 8 for i in range(32)])
    same = torch.isclose(y, whole(x)[0], atol=1e-5).flatten(0, 1).all(1)
    assert not same.all()
    assert not same[~kept].any(), "a first choice that came too late took part"
    assert torch.equal(full.eval()(x)[0], whole.eval()(x)[0])


def test_room_for_all_is_no_capacity(random_model: Any) -> None:
    whole, x = mixture(TINY, random_model)
    roomy, _ = mixture(replace(TINY, capacity_factor=4.0), random_model)
    results = []
    for mlp in (whole, roomy):
        own = x.clone().requires_grad_()
        y, auxiliary, _ = mlp(own)
        (y.square().sum() + auxiliary).backward()
        results.append((y, own.grad, mlp.experts.gate.grad, mlp.router.weight.grad))
    for first, other in zip(*results):
        torch.testing.assert_close(first, other, atol=1e-4, rtol=1e-4)


def test_auxiliary_losses_do_not_depend_on_how_a_batch_is_divided(random_model: Any) -> None:
    mlp, x = mixture(replace(TINY, balance_loss=1.0, z_loss=0.0), random_model)
    parts = sum(mlp(x[i : i + 1])[1] for i in range(2))
    torch.testing.assert_close(mlp(x)[1], parts, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        mlp.router.weight.zero_()  # Even probabilities: the least value, one for each token.
    assert float(mlp(x)[1].detach()) == pytest.approx(32, rel=1e-6)
    squared = mixture(replace(TINY, balance_loss=0.0, z_loss=1.0), random_model)[0]
    with torch.no_grad():
        squared.router.weight.zero_()
    assert float(squared(x)[1].detach()) == pytest.approx(32 * torch.tensor(4.0).log().item() ** 2, rel=1e-6)


def test_in_training_the_model_answers_with_its_loads(random_model: Any) -> None:
    model = random_model(replace(TINY, dense_layers=1, layers=3)).train()
    answer = model(torch.zeros(2, 16, dtype=torch.long))
    assert isinstance(answer, Answer)
    assert answer.loads.shape == (2, 2, 4)
    assert answer.loads.sum(2).tolist() == [[64, 64], [64, 64]]
    assert torch.equal(answer.logits, model.eval()(torch.zeros(2, 16, dtype=torch.long)))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_simulated_ranks_expect_what_the_others_send(ranks: int) -> None:
    counts = torch.zeros(2, ranks, 8 // ranks)
    tables = [even_counts(counts, 53, rank) for rank in range(ranks)]
    for rank, (sent, received) in enumerate(tables):
        assert sum(map(sum, sent)) == 53
        assert received == [tables[source][0][rank] for source in range(ranks)]
