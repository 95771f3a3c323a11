"""The closed form: shapes, figures known from measurements, what is communicated, speed without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dtk.config.schema import CustomModelConfig, SGDConfig
from dtk.errors import DtkError
from dtk.plan.formulas.closed_form import closed_form, link, memory, ring_bytes
from dtk.plan.formulas.shape import model_shape
from dtk.plan.job import planned_job
from dtk.plan.simulated.engine import simulate
from dtk.strategies.ddp import FIRST_BUCKET_BYTES, DDPConfig, gradient_buckets
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config
from dtk.strategies.zero2 import Zero2Config
from tests.patience import stretched
from tests.unit.plan.closed_form_jobs import ENCODER, LLAMA, STRATEGIES, TINY, gpt, job

MIB = 2**20


@pytest.mark.parametrize(
    ("strategy", "sequence", "micro", "measured_mib"),
    [
        (DDPConfig(gradient_as_bucket_view=False), 512, 4, 4242.3),
        (FSDPConfig(reshard_after_forward=False), 512, 4, 3530.2),
        (FSDPConfig(), 256, 2, 1496.3),
    ],
)
def test_gpt2_on_two_ranks_as_allocators_counted_it(strategy, sequence, micro, measured_mib):
    """Tensors of the second step of GPT-2 124M by tracking every storage; gloo's own copies are not in these."""
    memory = closed_form(job(2, strategy, gpt(), sequence, micro), 2).memory
    assert memory.peak_bytes / MIB == pytest.approx(measured_mib, abs=0.06)


def test_a_block_keeps_sixteen_elements_per_token_and_feature():
    def activations(layers):
        config = job(1, SingleConfig(), gpt(layers), 512, 4)
        return closed_form(config, 1).memory.at_peak_bytes["activations"]

    tokens = 4 * 512
    attention_rows, norm_rows = 4 * 12 * tokens, 2 * 2 * 4 * tokens
    assert activations(13) - activations(12) == 16 * 4 * tokens * 768 + attention_rows + norm_rows


def test_the_loss_holds_three_copies_of_the_logits():
    at_peak = closed_form(job(1, SingleConfig(), gpt(), 512, 4), 1).memory.at_peak_bytes
    assert at_peak["logits"] == pytest.approx(3 * 4 * 512 * 50257 * 4, rel=1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("model", [TINY, LLAMA, ENCODER], ids=["gpt", "llama", "encoder"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_parts_add_up_to_the_highest_region(name, device, model, precision):
    ranks, strategy = STRATEGIES[name]
    prediction = closed_form(job(ranks, strategy, model, rounds=2, device=device, precision=precision), ranks)
    memory = prediction.memory
    assert memory.peak_bytes == max(memory.by_region_bytes.values()) == memory.by_region_bytes[memory.region]
    assert set(memory.by_region_bytes) == {"forward", "backward", "clip", "optimizer"}
    assert min(memory.at_peak_bytes.values()) > 0
    # After backward only model states are left: parameters, gradients and two moments.
    states = 4 * prediction.parameters * {"single": 4, "ddp": 4, "zero1": 2.5, "hsdp": 2}.get(name, 1)
    assert memory.by_region_bytes["optimizer"] == pytest.approx(states, rel=0.06)


def test_every_rank_more_lowers_memory():
    peaks = [closed_form(job(ranks, FSDPConfig()), ranks).memory.peak_bytes for ranks in (2, 4, 16, 64)]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({}, {"strategy": Zero2Config()}),
        ({}, {"strategy": FSDPConfig(blocks_per_unit=0)}),
        ({}, {"strategy": FSDPConfig(prefetch_depth=3)}),
        ({"recompute": 1}, {"recompute": 2}),
        ({"recompute": 2}, {}),
        ({"precision": "bfloat16"}, {}),
        ({"strategy": FSDPConfig(offload="parameters")}, {}),
        ({"optimizer": SGDConfig()}, {}),
        ({}, {"rounds": 2}),
    ],
)
def test_settings_move_memory_the_right_way(less, more):
    small, large = (
        closed_form(job(4, **{"strategy": FSDPConfig(), "sequence": 256, **settings}), 4).memory.peak_bytes
        for settings in (less, more)
    )
    assert small < large


def test_offloaded_states_are_host_memory():
    kept = closed_form(job(4, FSDPConfig()), 4).memory
    moved = closed_form(job(4, FSDPConfig(offload="parameters")), 4).memory
    assert kept.host_bytes == 0
    assert {"parameters", "optimizer states"}.isdisjoint(moved.at_peak_bytes)
    assert moved.host_bytes == pytest.approx(4 * 858_880, rel=0.01)  # A quarter of each of four.


def test_a_model_of_ones_own_is_for_the_other_engine():
    config = job(2, DDPConfig(), CustomModelConfig(name="mine", _target_="somewhere.Model"))
    with pytest.raises(DtkError, match="simulated engine"):
        closed_form(config, 2)


WORK = """
import json, sys
from tests.unit.plan.closed_form_jobs import STRATEGIES, gpt, job
from dtk.plan.formulas.closed_form import closed_form
from tests.work import calls_in
most_calls = 0
for name, (_, strategy) in STRATEGIES.items():
    for model in (gpt(96, 12288, 96, 51200, 2048), gpt(128, 25600, 160, 51200, 2048)):
        if name == "single":
            continue
        config = job(4096, strategy, model, 2048, 1, precision="bfloat16", device="cuda")
        prediction, calls = calls_in(lambda: closed_form(config, 4096))
        most_calls = max(most_calls, calls)
        assert prediction.memory.peak_bytes > 0 and prediction.parameters > 1.7e11
print(json.dumps([most_calls, "torch" in sys.modules]))
"""


def test_a_trillion_parameters_on_4096_ranks_take_little_work_and_no_torch():
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, timeout=stretched(60), cwd=root)
    assert done.returncode == 0, done.stderr
    most_calls, torch_imported = json.loads(done.stdout)
    assert most_calls < 80_000
    assert not torch_imported


EXPERTS = [
    "model=moe_tiny",
    "data=synthetic",
    "data.vocab_size=512",
    "data.sequence_length=64",
    "launcher.device=cpu",
    *("train.global_batch_size=8", "train.micro_batch_size=2"),
]


@pytest.mark.parametrize(
    ("ranks", "overrides"),
    [
        (2, ["strategy=moe", "model.capacity_factor=1.25"]),
        (2, ["strategy=moe", "model.dense_layers=1", "model.shared_experts=1", "train.activation_checkpoint_every=2"]),
        (2, ["strategy=ddp", "parallel.ep=2", "precision=bf16"]),
        (4, ["strategy=fsdp", "parallel.ep=2", "strategy.blocks_per_unit=2"]),
        (2, ["strategy=moe", "model.experts=32", "model.experts_per_token=4"]),
        (2, ["strategy=ddp", "parallel.pp=2", "parallel.schedule=zero_bubble"]),
        (4, ["strategy=ddp", "parallel.pp=2", "parallel.schedule=zbv", "parallel.stages_per_rank=2"]),
        (2, ["strategy=zero1", "parallel.pp=2", "parallel.schedule=zero_bubble", "parallel.stages_per_rank=2"]),
        (2, ["strategy=fsdp", "parallel.pp=2", "parallel.schedule=looped_bfs", "parallel.stages_per_rank=2"]),
    ],
)
def test_the_peak_and_the_calls_are_those_of_the_simulated_step(ranks: int, overrides: list[str]) -> None:
    config = planned_job([*EXPERTS, *overrides], None, ranks).config
    ours, theirs = closed_form(config, ranks), simulate(config, ranks)
    assert ours.memory.peak_bytes == pytest.approx(theirs.memory.peak_bytes, rel=0.01)
    calls = [
        {(transfer.op, transfer.group, transfer.count, transfer.size_bytes) for transfer in each.traffic}
        for each in (ours, theirs)
    ]
    assert calls[0] == calls[1] and ours.parameters == theirs.parameters


@pytest.mark.parametrize("overrides", [[], ["strategy.blocks_per_unit=2"], ["train.activation_checkpoint_every=1"]])
def test_blocks_that_are_left_out_are_like_their_neighbours(overrides: list[str]) -> None:
    config = planned_job([*EXPERTS, "strategy=moe", "model.layers=24", *overrides], None, 4).config
    assert memory(config, 4) == memory(config, 4, whole=True)


BLOCK = 12 * 128**2 + 13 * 128
ROOT = (256 + 256) * 128 + 2 * 128
"""Elements of gpt2_tiny: of each of 4 blocks, and of the rest."""
WHOLE = 4 * BLOCK + ROOT


def lines(ranks, strategy, **settings):
    prediction = closed_form(job(ranks, strategy, **settings), ranks, local_size=8)
    return {(t.op, t.group): t for t in prediction.traffic}


def test_single_communicates_nothing():
    assert lines(1, SingleConfig()) == {}


def test_ddp_reduces_all_gradients_and_zero1_broadcasts_the_parameters():
    result = lines(4, DDPConfig())
    assert {k: (t.ranks, t.size_bytes) for k, t in result.items()} == {("all_reduce", "dp"): (4, 4 * WHOLE)}
    broadcast = lines(4, Zero1Config())["broadcast", "dp"]
    assert (broadcast.count, broadcast.size_bytes) == (4, 4 * WHOLE)


def test_fsdp_gathers_twice_but_for_the_root_and_accumulates_without_reducing():
    result = lines(2, FSDPConfig(), rounds=3)
    gathers, reductions = result["all_gather", "dp_shard"], result["reduce_scatter", "dp_shard"]
    assert (gathers.count, gathers.size_bytes) == (3 * 9, 3 * 4 * (8 * BLOCK + ROOT))
    assert (reductions.count, reductions.size_bytes) == (5, 4 * WHOLE)
    assert result["all_reduce", "dp_shard"].size_bytes == 4
    assert gathers.sent_bytes == gathers.size_bytes // 2


def test_hsdp_reduces_shards_between_replicas_over_the_slower_link():
    result = lines(16, HSDPConfig(dp_replicate=2), clip=None)
    assert {key: (t.ranks, t.link) for key, t in result.items()} == {
        ("all_gather", "dp_shard"): (8, "intra_node"),
        ("reduce_scatter", "dp_shard"): (8, "intra_node"),
        ("all_reduce", "dp_replicate"): (2, "inter_node"),
    }
    assert result["all_reduce", "dp_replicate"].size_bytes == result["reduce_scatter", "dp_shard"].size_bytes // 8


def test_bf16_halves_gathers_and_leaves_reductions_in_float32():
    fp32, bf16 = (lines(2, FSDPConfig(), precision=p) for p in ("float32", "bfloat16"))
    assert 2 * bf16["all_gather", "dp_shard"].size_bytes == fp32["all_gather", "dp_shard"].size_bytes
    assert bf16["reduce_scatter", "dp_shard"] == fp32["reduce_scatter", "dp_shard"]


@pytest.mark.parametrize("cap_mb", [0.1, 0.5, 1, 10, 25.0, 40])
def test_buckets_are_those_of_torch(cap_mb):
    import torch
    from torch._C._distributed_c10d import _DEFAULT_FIRST_BUCKET_BYTES, _compute_bucket_assignment_by_size

    assert FIRST_BUCKET_BYTES == _DEFAULT_FIRST_BUCKET_BYTES
    shapes = model_shape(gpt(3, 384, 6, vocab=9000)).shapes
    tensors = [torch.empty(shape, device="meta") for shape in reversed(shapes)]
    first = FIRST_BUCKET_BYTES if cap_mb == 25.0 else int(cap_mb * 2**20)
    limits = [first, int(cap_mb * 2**20)]
    theirs, _ = _compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    assert gradient_buckets(cap_mb, shapes) == theirs


@pytest.mark.parametrize(
    ("ranks", "stride", "world_size", "local_size", "expected"),
    [
        (8, 1, 8, 8, "intra_node"),
        (16, 1, 16, 8, "inter_node"),
        (4, 1, 64, 8, "intra_node"),
        (6, 1, 24, 8, "inter_node"),  # Ranks 6 to 11 lie on two nodes.
        (2, 4, 8, 8, "intra_node"),
        (2, 8, 16, 8, "inter_node"),
        (1, 64, 64, 8, "intra_node"),
    ],
)
def test_the_slowest_link_of_a_dimension(ranks, stride, world_size, local_size, expected):
    assert link(ranks, stride, world_size, local_size) == expected


def test_ring_volumes():
    assert ring_bytes("all_reduce", 800, 4) == 1200
    assert ring_bytes("all_gather", 800, 4) == ring_bytes("reduce_scatter", 800, 4) == 600
    assert ring_bytes("all_reduce", 800, 1) == 0
    assert ring_bytes("all_reduce", 4, 64) == 8  # 7.875
