"""Micro-batches of a step: the summed loss, one communication at the end, and how experts were used."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from diagnostics.contract.mesh import Mesh
from dtk.config import schema
from dtk.config.schema import PrecisionConfig
from dtk.data.dataset import Batch
from dtk.dimensions.cp import Part
from dtk.models.build import build_model
from dtk.models.initialize import initialize_model
from dtk.models.moe import Answer
from dtk.parallel.collectives import Axis
from dtk.strategies.single import Single, SingleConfig
from dtk.tasks.cross_entropy import LanguageModeling
from dtk.train.runner import Accumulate, ExpertLoads, Stage, own_part
from tests.unit.rank_threads import context, on_ranks

CPU = torch.device("cpu")
MOE = schema.MoEConfig(
    name="probe", vocab_size=11, context_length=8, layers=2, heads=2, kv_heads=2, width=8, ffn_width=12, experts=4,
    expert_width=6, experts_per_token=2, dense_layers=1,
)  # fmt: skip


def test_losses_are_summed_and_gradients_scaled() -> None:
    tokens = torch.arange(32).view(4, 8) % 11
    batches = [Batch(tokens[:2], tokens[:2].roll(-1, 1)), Batch(tokens[2:], tokens[2:].roll(-1, 1))]

    def work(rank: int) -> Any:
        strategy = Single(SingleConfig(), context(rank, Mesh()), PrecisionConfig())
        model = build_model(MOE, [])
        initialize_model(model, 1)
        seeds: list[int] = []
        runner = Accumulate(
            strategy,
            Stage(model, model, lambda steps: []),
            LanguageModeling(),
            loads=ExpertLoads(strategy.context, MOE),
        )
        loss = runner.run(batches, 0.25, seeds.append)
        answer = model(tokens)
        assert isinstance(answer, Answer) and seeds == [0, 1]
        expected = torch.nn.functional.cross_entropy(answer.logits.flatten(0, 1), tokens.roll(-1, 1).flatten())
        assert torch.allclose(loss, 32 * expected) and not loss.requires_grad
        paths = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        ((32 * expected + answer.auxiliary) * 0.25).backward()
        whole = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(paths, whole, strict=True))
        figures = runner.figures()
        assert figures["expert_dropped"] == 0 and figures["expert_load"] >= 1.0
        assert runner.run(batches, 0.25, seeds.append).equal(loss), "loads are those of the last step"
        return figures == runner.figures()

    assert on_ranks(1, work) == [True]


def test_the_worst_block_is_told_over_all_ranks() -> None:
    # Two blocks of four experts: chosen, then taken. Rank 1 adds to the first expert of the second block.
    counts = torch.tensor([[[2, 2, 2, 2], [2, 2, 2, 2]], [[3, 1, 2, 2], [3, 1, 2, 2]]])
    more = torch.tensor([[[2, 2, 2, 2], [2, 2, 2, 2]], [[8, 0, 0, 0], [2, 0, 0, 0]]])

    def work(rank: int) -> dict[str, float]:
        loads = ExpertLoads(context(rank, Mesh(dp_replicate=2, ep=2)), replace(MOE, dense_layers=0))
        for table in (counts, more - counts) if rank else (counts,):
            loads.add(Answer(torch.empty(0), torch.empty(0), table))
        return loads.figures()

    figures = on_ranks(2, work)[0]
    # Taken in the second block: 5, 1, 2, 2 of 16 chosen; the first is even, and its ranks wait for nothing.
    assert figures["expert_load"] == pytest.approx(5 / 2.5)
    assert figures["expert_rank_load"] == pytest.approx((1 + 6 / 5) / 2)
    assert figures["expert_dropped"] == pytest.approx(1 - 10 / 16)
    assert figures["expert_load_per_rank"] == [pytest.approx(14 / 13, abs=1e-3), pytest.approx(12 / 13, abs=1e-3)]


def test_a_part_of_the_sequence_comes_with_its_positions() -> None:
    batch = Batch(torch.arange(16).view(2, 8), torch.arange(16).view(2, 8))
    assert own_part(None, batch, CPU) == (batch, {})
    own, where = own_part(Part(Axis("cp", None, 1, 2), "ulysses"), batch, CPU)  # type: ignore[arg-type]
    assert own.inputs.tolist() == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert where["positions"].tolist() == [4, 5, 6, 7]
