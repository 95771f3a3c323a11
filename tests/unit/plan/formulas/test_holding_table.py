"""The memory table against trainings that run and against the published one."""

import pytest
import torch

from dtk.config.schema import GPTConfig
from dtk.models.build import build_model
from dtk.plan.formulas.holding import STAGES, TRAININGS
from tests.unit.plan.published import model_states_bytes

DTYPES = {
    "fp32": torch.float32,
    "fp16 mixed": torch.float16,
    "bf16 mixed": torch.bfloat16,
    "pure bf16": torch.bfloat16,
}
MODEL = GPTConfig(name="probe", vocab_size=64, context_length=16, layers=2, heads=2, width=32)


@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: training.name)
def test_a_training_of_that_kind_holds_so_many_bytes(training):
    """Weights in the type that computes, where there is a master the optimizer updates it and it is copied back."""
    model = build_model(MODEL, []).to(DTYPES[training.name])
    weights = list(model.parameters())
    masters = [p.detach().float().requires_grad_() for p in weights] if training.master else weights
    optimizer = torch.optim.AdamW(masters)
    for _ in range(2):
        model(torch.arange(16).reshape(1, 16)).float().square().mean().backward()
        if training.master:
            for master, weight in zip(masters, weights):
                master.grad = weight.grad.float()
        optimizer.step()
        if training.master:
            torch._foreach_copy_([p.detach() for p in weights], [master.detach() for master in masters])
    assert all(bool(p.isfinite().all()) for p in weights)
    states = [list(optimizer.state[p].values()) for p in masters]
    kinds = {
        "weights": weights,
        "gradients": [p.grad for p in weights],
        "master": masters if training.master else [],
        "momentum": [optimizer.state[p]["exp_avg"] for p in masters],
        "variance": [optimizer.state[p]["exp_avg_sq"] for p in masters],
    }
    assert all(sum(v.dim() > 0 for v in state) == 2 for state in states)
    count = sum(p.numel() for p in weights)
    for kind, tensors in kinds.items():
        assert sum(t.nbytes for t in tensors) == count * getattr(training, kind), kind
    assert training.per_parameter == sum(getattr(training, kind) for kind in kinds)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ["fp16 mixed", "bf16 mixed"])
def test_mixed_precision_is_the_table_of_the_zero_paper(name, stage):
    training = next(item for item in TRAININGS if item.name == name)
    for ranks in (1, 8, 64, 1024):
        assert training.rank_bytes(7_500_000_000, stage, ranks) == pytest.approx(
            model_states_bytes(7.5e9, ranks, stage)
        )
