"""Tensor parallel: which parameters are cut how, and what a step sends, by hand."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from diagnostics.contract.mesh import Mesh
from dtk.config.compose import compose
from dtk.config.schema import PrecisionConfig
from dtk.dimensions import tp
from dtk.errors import DtkError
from dtk.models.build import build_model
from dtk.sharding.registry import build_strategy
from dtk.strategies.ddp import ReplicatedUnitsConfig
from tests.unit.rank_threads import context, on_ranks

SMALL = ["model.layers=2", "model.width=16", "model.heads=2", "data.sequence_length=8", "train.micro_batch_size=2"]
MESH = Mesh(tp=2)


def config(*more: str) -> Any:
    return compose(["model=gpt2_tiny", "strategy=ddp", "parallel.tp=2", *SMALL, *more]).config


def cut(settings: Any, model: nn.Module, rank: int) -> Any:
    strategy = build_strategy(ReplicatedUnitsConfig(), context(rank, MESH), PrecisionConfig())
    tp.cut_model(settings, model, strategy)
    return strategy


def test_matrices_are_cut_by_the_role_of_their_layer() -> None:
    settings = config()

    def work(rank: int) -> dict[str, Any]:
        with torch.device("meta"):
            model = build_model(settings.model, [])
        strategy = cut(settings, model, rank)
        assert all(isinstance(p, DTensor) for p in model.parameters())
        assert all(module.cut is not None for module in model.modules() if hasattr(module, "cut"))
        placed = {name: p.placements[0] for name, p in model.named_parameters() if isinstance(p, DTensor)}
        return {**placed, "partial": strategy.partial_over_tp}

    placed = on_ranks(2, work)[0]
    assert placed["blocks.0.attention.qkv.weight"] == placed["blocks.0.mlp.up.bias"] == Shard(0)
    assert placed["blocks.1.mlp.down.weight"] == Shard(1) and placed["token_embedding.weight"] == Shard(0)
    assert placed["blocks.1.mlp.down.bias"] == placed["final_norm.weight"] == Replicate()
    assert {"blocks.1.mlp.down.bias", "final_norm.weight", "position_embedding.weight"} <= set(placed["partial"])
    assert not any(name.endswith(("qkv.weight", "up.bias")) for name in placed["partial"])


def test_without_sequence_parallel_no_gradient_is_partial() -> None:
    settings = config("parallel.sequence_parallel=false")

    def work(rank: int) -> list[str]:
        with torch.device("meta"):
            model = build_model(settings.model, [])
        return cut(settings, model, rank).partial_over_tp  # type: ignore[no-any-return]

    assert on_ranks(2, work) == [[], []]


def test_a_layer_that_does_not_say_how_is_refused() -> None:
    composed = config()  # Once: Hydra composes in one thread at a time.

    def work(rank: int) -> str:
        with torch.device("meta"), pytest.raises(DtkError) as caught:
            cut(composed, nn.Sequential(nn.Linear(4, 4)), rank)
        return str(caught.value)

    assert all("parallel.tp=2 cannot cut 0" in text and "Linear does not say" in text for text in on_ranks(2, work))


def totals(settings: Any, steps: int = 1, partial: Any = (), blocks: range | None = None) -> dict[str, tuple[int, int]]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for c in tp.declare(settings, MESH, steps, partial, blocks):
        assert c.group == "tp"
        counts[c.op] += c.count
        sizes[c.op] += c.size_bytes
    return {op: (counts[op], sizes[op]) for op in counts}


TOKENS, WIDTH = 2 * 8, 16
STREAM = TOKENS * WIDTH * 4


def test_a_step_by_hand() -> None:
    # 2 blocks: entered twice each and once before the output, left twice each; the embedding; the loss on its parts.
    result = totals(config("parallel.loss_parallel=true"), partial=[(16,), (16,)])
    assert result["all_gather"] == (2 * 2 + 1 + 2 * 2 + 1, 10 * STREAM)
    assert result["reduce_scatter"] == (10, 10 * STREAM)
    assert result["all_reduce"] == (3, 4 * TOKENS + 8 * TOKENS + 4 * 32)
    whole = totals(config("parallel.sequence_parallel=false", "parallel.loss_parallel=false"), steps=3)
    vocabulary = config().model.vocab_size
    assert whole == {"all_reduce": (30, 30 * STREAM), "all_gather": (3, 3 * TOKENS * vocabulary * 4)}


def test_stages_add_up_to_the_whole_model() -> None:
    settings = config("parallel.loss_parallel=true")
    stages = [totals(settings, 2, blocks=blocks) for blocks in (range(1), range(1, 2))]
    for op, (count, size) in totals(settings, 2).items():
        assert sum(stage.get(op, (0, 0))[0] for stage in stages) == count
        assert sum(stage.get(op, (0, 0))[1] for stage in stages) == size


def test_recomputing_blocks_gathers_again() -> None:
    plain, again = totals(config()), totals(config("train.activation_checkpoint_every=2"))
    assert again["all_gather"][0] == plain["all_gather"][0] + 2, "one of two blocks"
    assert again["reduce_scatter"][0] == plain["reduce_scatter"][0] + 1
    assert tp.declare(config(), Mesh(dp_replicate=2), 1, []) == []
