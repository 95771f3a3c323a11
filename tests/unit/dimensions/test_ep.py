"""Expert parallel: experts cut by rows, and the all_to_alls of a step, by hand."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard

from diagnostics.contract.mesh import Mesh
from dtk.config.compose import compose
from dtk.config.schema import PrecisionConfig
from dtk.dimensions import ep
from dtk.models.build import build_model
from dtk.models.moe import MixtureMLP
from dtk.sharding.declared import Collective
from dtk.sharding.registry import build_strategy
from dtk.strategies.fsdp import FSDPConfig
from tests.unit.rank_threads import context, on_ranks

MESH = Mesh(dp_shard=2, ep=2)
TINY = [
    "model=mixtral_8x7b", "model.layers=3", "model.dense_layers=1", "model.width=16", "model.heads=2",
    "model.kv_heads=2", "model.experts=4", "model.experts_per_token=2", "model.expert_width=8", "model.vocab_size=32",
    "data.sequence_length=8", "train.micro_batch_size=2", "parallel.ep=2", "strategy=fsdp",
]  # fmt: skip


def config(*more: str) -> Any:
    return compose([*TINY, *more]).config


def test_experts_are_cut_and_nothing_else() -> None:
    def work(rank: int) -> list[str]:
        with torch.device("meta"):
            model = build_model(config().model, [])
        strategy = build_strategy(FSDPConfig(), context(rank, MESH), PrecisionConfig())
        ep.cut_model(model, strategy)
        mixtures = [module for module in model.modules() if isinstance(module, MixtureMLP)]
        assert [module.axis.size for module in mixtures if module.axis is not None] == [2, 2]
        cut = {name: p for name, p in model.named_parameters() if isinstance(p, DTensor)}
        assert all(p.placements == (Shard(0),) and p.to_local().shape[0] * 2 == p.shape[0] for p in cut.values())
        return list(cut)

    assert on_ranks(2, work)[1] == [f"blocks.{i}.mlp.experts.{name}" for i in (1, 2) for name in ("gate", "up", "down")]


def test_rows_travel_there_and_back_in_both_directions() -> None:
    rows = 2 * 8 * 2  # Tokens of a micro-batch, two experts each.
    calls = 3 * 4 * 2  # Micro-batches; out and back, forward and backward; blocks with experts.
    announced = 3 * 2
    expected = Collective("all_to_all", "ep", calls + announced, calls * rows * 16 * 4 + announced * 4 * 8)
    assert ep.declare(config(), MESH, 3) == [expected]
    assert ep.declare(config(), Mesh(dp_shard=2), 3) == []


def test_a_capacity_fixes_the_rows_and_needs_no_announcement() -> None:
    (capped,) = ep.declare(config("model.capacity_factor=1.5"), MESH, 1)
    assert (capped.count, capped.size_bytes) == (8, 8 * 4 * 12 * 16 * 4), "4 experts of ceil(1.5 x 32 / 4) rows"


def test_recomputed_blocks_send_their_tokens_again() -> None:
    (plain,), (again,) = (ep.declare(config(*more), MESH, 1) for more in ((), ("train.activation_checkpoint_every=2",)))
    assert again.count - plain.count == 2 + 1, "of blocks 1 and 2 the second: out, back, and its counts"


def test_the_balance_is_summed_over_what_divides_sequences_and_only_blocks_of_the_stage_count() -> None:
    mesh = Mesh(dp_shard=2, cp=2, tp=2, ep=2)
    calls = {call.group: call for call in ep.declare(config(), mesh, 3)}
    # Forward and backward of two blocks with experts: shares and probabilities of 4 experts for 2 samples, float32.
    assert calls["cp"] == Collective("all_reduce", "cp", 3 * 4, 3 * 4 * 2 * 2 * 4 * 4)
    assert calls["tp"] == Collective("all_reduce", "tp", 3 * 4, 3 * 4 * 2 * 2 * 4 * 4)
    (stage,) = ep.declare(config(), MESH, 3, range(2))
    (whole,) = ep.declare(config(), MESH, 3)
    assert 2 * stage.count == whole.count, "block 0 is dense, 1 is in the stage, 2 is not"
