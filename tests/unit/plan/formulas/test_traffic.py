"""What the closed form says is communicated: counts and bytes by hand, DDP's buckets as torch makes them, links."""

import pytest

from dtk.plan.formulas.closed_form import closed_form, link, ring_bytes
from dtk.plan.formulas.shape import model_shape
from dtk.strategies.ddp import FIRST_BUCKET_BYTES, DDPConfig, gradient_buckets
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.single import SingleConfig
from dtk.strategies.zero1 import Zero1Config
from tests.unit.plan.closed_form_jobs import gpt, job

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
    found = lines(4, DDPConfig())
    assert {k: (t.ranks, t.size_bytes) for k, t in found.items()} == {("all_reduce", "dp"): (4, 4 * WHOLE)}
    broadcast = lines(4, Zero1Config())["broadcast", "dp"]
    assert (broadcast.count, broadcast.size_bytes) == (4, 4 * WHOLE)


def test_fsdp_gathers_twice_but_for_the_root_and_accumulates_without_reducing():
    found = lines(2, FSDPConfig(), rounds=3)
    gathers, reductions = found["all_gather", "dp_shard"], found["reduce_scatter", "dp_shard"]
    assert (gathers.count, gathers.size_bytes) == (3 * 9, 3 * 4 * (8 * BLOCK + ROOT))
    assert (reductions.count, reductions.size_bytes) == (5, 4 * WHOLE)
    assert found["all_reduce", "dp_shard"].size_bytes == 4
    assert gathers.sent_bytes == gathers.size_bytes // 2


def test_hsdp_reduces_shards_between_replicas_over_the_slower_link():
    found = lines(16, HSDPConfig(dp_replicate=2), clip=None)
    assert {key: (t.ranks, t.link) for key, t in found.items()} == {
        ("all_gather", "dp_shard"): (8, "intra_node"),
        ("reduce_scatter", "dp_shard"): (8, "intra_node"),
        ("all_reduce", "dp_replicate"): (2, "inter_node"),
    }
    assert found["all_reduce", "dp_replicate"].size_bytes == found["reduce_scatter", "dp_shard"].size_bytes // 8


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
