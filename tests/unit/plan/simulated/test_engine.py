"""The simulated engine: no ghosts at many ranks, depths on a straight line, the fullest rank, traffic."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dtk.config.schema import ParallelConfig
from dtk.dimensions import cp
from dtk.errors import DtkError
from dtk.parallel import compression, int8, regions
from dtk.plan.formulas.closed_form import closed_form
from dtk.plan.job import planned_job
from dtk.plan.simulated import smaller
from dtk.plan.simulated.engine import simulate, totals, whole_dimension
from dtk.plan.simulated.smaller import depths
from dtk.simulate.step import Call
from dtk.strategies.dp import DPConfig

pytestmark = pytest.mark.filterwarnings("ignore")
TINY = ["model=gpt2_tiny", "model.layers=2", "data=synthetic", "data.sequence_length=32"]


def job(world_size, *overrides):
    return planned_job([*TINY, *overrides], None, world_size).config


def calls(prediction):
    return {(transfer.op, transfer.group): (transfer.count, transfer.size_bytes) for transfer in prediction.traffic}


def test_states_fall_with_the_ranks_and_no_ghosts_appear():
    """AdamW states are P x 2 / N; whole parameters must not show up in the optimizer's region at 64 ranks."""
    few, many = (simulate(job(ranks, "strategy=fsdp"), ranks) for ranks in (2, 64))
    parameters = 4 * few.parameters
    assert few.parameters == 462_336
    for prediction, ranks in ((few, 2), (many, 64)):
        at_peak_bytes = prediction.memory.at_peak_bytes
        assert at_peak_bytes["parameters"] == pytest.approx(parameters / ranks, rel=0.02)
        assert at_peak_bytes["optimizer states"] == pytest.approx(2 * parameters / ranks, rel=0.02)
    # Parameters, gradients, two moments; the step of the fused optimizer needs nothing more.
    assert many.memory.by_region_bytes["optimizer"] == pytest.approx(4 * parameters / 64, rel=0.02)
    saved = few.memory.peak_bytes - many.memory.peak_bytes
    assert saved >= 3 * parameters * (1 / 2 - 1 / 64)


@pytest.mark.parametrize("context", ["ring", "ulysses"])
def test_eight_ranks_along_cp_hold_eight_times_the_sequence(context):
    """Each with no more memory than one rank for an eighth of it; and they declare what they send."""
    sizes = ["model.heads=8", "model.context_length=2048", "train.global_batch_size=2", "train.micro_batch_size=1"]
    cut = ["strategy=fsdp", "parallel.cp=8", f"parallel.context={context}"]
    prediction = simulate(job(1, *sizes, "strategy=single", "data.sequence_length=256"), 1)
    long = job(8, *sizes, *cut, "data.sequence_length=2048")
    eight = simulate(long, 8)
    assert eight.memory.peak_bytes < prediction.memory.peak_bytes
    declared = cp.declare(long, long.mesh(8), 2)
    assert {each: calls(eight)[each] for each in calls(eight) if each[1] == "cp"} == {
        (each.op, each.group): (each.count, each.size_bytes) for each in declared
    }


def test_hsdp_groups_and_links():
    prediction = simulate(job(16, "strategy=hsdp", "strategy.dp_replicate=2"), 16, 8)
    parameters = 4 * prediction.parameters
    assert calls(prediction) == {
        ("all_gather", "dp_shard"): (5, 2 * parameters - 65_792 * 4),
        ("reduce_scatter", "dp_shard"): (3, parameters),
        ("all_reduce", "dp_replicate"): (3, parameters // 8),
        ("all_reduce", "dp_shard"): (1, 4),
    }
    assert {transfer.group: (transfer.ranks, transfer.link) for transfer in prediction.traffic} == {
        "dp_shard": (8, "intra_node"),
        "dp_replicate": (2, "inter_node"),
    }
    reduction = next(transfer for transfer in prediction.traffic if transfer.op == "reduce_scatter")
    assert reduction.sent_bytes == parameters * 7 // 8


def line_equals_direct(config, through, monkeypatch):
    direct = simulate(config, 64)
    removed = tuple(config.model.layers - depth for depth in through)
    monkeypatch.setattr(smaller, "depths", lambda config: removed)
    line = simulate(config, 64)
    assert line.memory.peak_bytes == pytest.approx(direct.memory.peak_bytes, rel=0.001)
    assert line.memory.region == direct.memory.region
    assert line.parameters == direct.parameters
    assert calls(line) == calls(direct)
    for region, size in direct.memory.by_region_bytes.items():
        assert line.memory.by_region_bytes[region] == pytest.approx(size, rel=0.001), region


def test_six_blocks_by_the_straight_line(monkeypatch):
    line_equals_direct(job(64, "strategy=fsdp", "model.layers=6"), (4, 5), monkeypatch)


@pytest.mark.parametrize(
    "cut",
    [
        ["parallel.pp=2", "parallel.schedule=zero_bubble"],
        ["parallel.cp=2"],
        ["parallel.cp=2", "parallel.context=ulysses"],
    ],
)
def test_the_closed_form_of_a_cut_is_what_is_simulated(cut):
    config = job(2, "strategy=ddp", "model.layers=2", "train.global_batch_size=8", "data.sequence_length=64", *cut)
    simulated, formula = simulate(config, 2), closed_form(config, 2)
    assert formula.memory.peak_bytes == pytest.approx(simulated.memory.peak_bytes, rel=0.03)
    assert calls(simulated) == calls(formula)


def test_several_stages_on_a_rank():
    parallel = ParallelConfig(pp=2, schedule="interleaved_1f1b", stages_per_rank=2)
    config = dataclasses.replace(
        job(2, "strategy=ddp", "model.layers=4", "train.global_batch_size=8"), parallel=parallel
    )
    simulated, formula = simulate(config, 2), closed_form(config, 2)
    assert simulated.memory.peak_bytes == pytest.approx(formula.memory.peak_bytes, rel=0.01)
    assert calls(simulated) == calls(formula)


@pytest.mark.extended
@pytest.mark.parametrize("recompute", [0, 1])
def test_gpt2_by_the_straight_line(monkeypatch, recompute):
    config = planned_job(
        [
            *("model=gpt2", "data=synthetic", "data.sequence_length=256", "data.vocab_size=50257", "strategy=fsdp"),
            f"train.activation_checkpoint_every={recompute}",
        ],
        None,
        64,
    ).config
    assert depths(config) == (0,)
    line_equals_direct(config, (4, 8), monkeypatch)


def test_hsdp_of_one_rank_per_shard_group():
    """All ranks are one dp_replicate group then, and nothing is gathered."""
    prediction = simulate(job(2, "strategy=hsdp", "strategy.dp_replicate=2"), 2)
    assert calls(prediction) == {
        ("all_reduce", "dp_replicate"): (3, 4 * prediction.parameters),
        ("all_reduce", "dp_shard"): (1, 4),
    }


def test_micro_batches_are_multiplied():
    """Gathers happen in each micro-batch, reductions once: four micro-batches from three simulated ones."""
    few, many = (
        simulate(job(4, "strategy=fsdp", f"train.global_batch_size={4 * n}", "train.micro_batch_size=1"), 4)
        for n in (1, 4)
    )
    once, often = calls(few), calls(many)
    assert often["all_gather", "dp_shard"] == tuple(4 * item for item in once["all_gather", "dp_shard"])
    assert often["reduce_scatter", "dp_shard"] == once["reduce_scatter", "dp_shard"]
    assert many.memory.peak_bytes > few.memory.peak_bytes  # whole gradients wait for the last one


def test_zero1_says_what_the_fullest_rank_holds():
    """Whole parameters are dealt out: at 64 ranks the largest one stays on one rank."""
    config = job(64, "strategy=zero1", "model.vocab_size=4096", "data.vocab_size=4096")
    prediction = simulate(config, 64)
    assert prediction.memory.at_peak_bytes["optimizer states"] == pytest.approx(2 * 4 * 4096 * 128, rel=0.01)
    # Ranks beyond the 28 parameters own nothing and broadcast one number each.
    assert calls(prediction)["broadcast", "dp"] == (64, 4 * prediction.parameters + 4 * (64 - 28))


def test_offloading_moves_states_to_the_host():
    plain = simulate(job(4, "strategy=fsdp"), 4)
    prediction = simulate(job(4, "strategy=fsdp", "strategy.offload=parameters"), 4)
    states = 4 * 4 * prediction.parameters / 4
    assert prediction.memory.host_bytes == pytest.approx(states, rel=0.02)
    assert not {"parameters", "optimizer states"} & set(prediction.memory.at_peak_bytes)
    assert prediction.memory.peak_bytes < plain.memory.peak_bytes


@pytest.mark.parametrize("optimizer", ["optimizer.fused=false", "optimizer=sgd", "optimizer.in_backward=true"])
def test_optimizers_that_read_scalars(optimizer):
    prediction = simulate(job(2, "strategy=fsdp", optimizer, "train.clip_norm=null"), 2)
    states = prediction.memory.at_peak_bytes["optimizer states"]
    assert states == pytest.approx((1 if optimizer.endswith("sgd") else 2) * 4 * prediction.parameters / 2, rel=0.02)


def test_half_precision_with_loss_scaling():
    full, half = (simulate(job(2, "strategy=fsdp", f"precision={name}"), 2) for name in ("fp32", "fp16"))
    assert half.memory.peak_bytes < full.memory.peak_bytes
    assert calls(half)["all_gather", "dp_shard"][1] * 2 == calls(full)["all_gather", "dp_shard"][1]


def test_ddp_that_looks_for_unused_parameters():
    prediction = simulate(job(4, "strategy=ddp", "strategy.find_unused_parameters=true"), 4)
    count, size = calls(prediction)["all_reduce", "dp"]
    assert count == 3 and size == 4 * prediction.parameters + 4 * 28


@pytest.mark.parametrize("hook", ["int8", "topk", "powersgd"])
def test_both_engines_know_what_compression_sends_and_keeps(hook):
    """Of samples of 8 tokens copies beside a bucket set the peak; PowerSGD's factors are a fraction of a percent."""
    sizes = ["train.global_batch_size=8", "train.micro_batch_size=1", "data.sequence_length=8", "train.clip_norm=null"]
    config = job(4, "strategy=ddp", f"strategy.communication_hook={hook}", *sizes)
    simulated, formula = simulate(config, 4), closed_form(config, 4)
    assert calls(simulated) == calls(formula)
    near = 0.005 if hook == "powersgd" else 0.0005
    assert formula.memory.peak_bytes == pytest.approx(simulated.memory.peak_bytes, rel=near)
    temporaries = formula.memory.at_peak_bytes.get("temporaries", 0)
    assert temporaries > 0.05 * formula.memory.peak_bytes or hook == "topk"
    for prediction in (simulated, formula):
        assert prediction.memory.at_peak_bytes["buckets"] >= 4 * prediction.parameters  # The errors.


@pytest.mark.parametrize("at_once", [2**16, 40])
@pytest.mark.parametrize("quantized", ["weights", "gradients"])
def test_both_engines_know_what_rounding_to_int8_holds(quantized, at_once, monkeypatch):
    """All blocks together raise the peak, in which little else is; few at once stay below it."""
    for module in (int8, compression):
        monkeypatch.setattr(module, "BLOCKS_AT_ONCE", at_once)
    small = ["train.global_batch_size=4", "train.micro_batch_size=1", "data.sequence_length=8", "train.clip_norm=null"]
    whole, rounds = (job(4, "strategy=zero2", f"strategy.quantized_{quantized}={on}", *small) for on in (False, True))
    simulated, formula = simulate(rounds, 4).memory.peak_bytes, closed_form(rounds, 4).memory.peak_bytes
    added = simulated - simulate(whole, 4).memory.peak_bytes
    assert abs(formula - simulated) < 0.01 * simulated
    assert added > 0.02 * simulated if at_once > 40 else added == 0


def test_the_norm_of_experts_without_copies_is_summed_over_ep():
    """To torch the groups of dp_replicate and ep are one where each rank has its own experts."""
    config = job(2, "model=moe_tiny", "strategy=ddp", "parallel.ep=2")
    simulated = calls(simulate(config, 2))
    assert simulated["all_reduce", "ep"] == (1, 4)
    assert {group for op, group in simulated if op == "all_to_all"} == {"ep"}


def test_one_process_simulates_layouts_with_equal_meshes():
    for strategy, ranks in (("ddp", 4), ("fsdp", 8), ("fsdp", 4)):
        assert calls(simulate(job(ranks, f"strategy={strategy}", "parallel.tp=2"), ranks))


def test_nothing_is_left_behind():
    deterministic = torch.are_deterministic_algorithms_enabled()
    before = torch.get_rng_state()
    simulate(job(4, "strategy=ddp", "model.dropout=0.1", "train.deterministic=true"), 4)
    assert not dist.is_initialized() and not regions.observed()
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.ones(2).sum().item() == 2.0


def test_strategies_that_cannot_be_simulated():
    config = job(1, "strategy=single")
    config = dataclasses.replace(config, strategy=DPConfig())
    with pytest.raises(DtkError, match="cannot be simulated"):
        simulate(config, 1)


@pytest.mark.extended
@pytest.mark.timeout(60)
def test_a_thousand_ranks_of_a_175b_model():
    config = planned_job(
        [
            *("model=gpt2", "model.layers=96", "model.width=12288", "model.heads=96", "model.vocab_size=51200"),
            *("model.context_length=2048", "data=synthetic", "data.vocab_size=51200", "data.sequence_length=2048"),
            *("strategy=fsdp", "precision=bf16", "train.activation_checkpoint_every=1"),
        ],
        None,
        1024,
    ).config
    prediction = simulate(config, 1024)
    assert prediction.parameters == 174_615_846_912
    at_peak_bytes = prediction.memory.at_peak_bytes
    assert at_peak_bytes["optimizer states"] == pytest.approx(2 * 4 * 174_615_846_912 / 1024, rel=0.01)
    assert 20 * 2**30 < prediction.memory.peak_bytes < 30 * 2**30
    assert calls(prediction)["all_gather", "dp_shard"][0] == 2 * 96 + 1


def call(op: str = "all_reduce", group: str = "default_pg", micro_batch: int = 0, **values: Any) -> Call:
    return Call(op, group, values.pop("ranks", (0, 1, 2, 3)), values.pop("size_bytes", 100), micro_batch, **values)


def test_the_group_of_all_ranks_is_named_by_the_dimension_that_it_serves() -> None:
    calls = [call(), call(group="mesh_dp_shard"), call(dimension="ep"), call(group="control")]
    counts, sizes = totals(calls, "dp", simulated=1, rounds=1)
    names = {name: (counts[kind], sizes[kind]) for kind in counts for name in [kind[1]]}
    assert names == {"dp": (1, 100), "dp_shard": (1, 100), "ep": (1, 100)}


def test_the_middle_micro_batch_stands_for_all_between_the_first_and_the_last() -> None:
    calls = [call("all_gather", micro_batch=number) for number in (0, 1, 2)] + [call("reduce_scatter", micro_batch=2)]
    counts, sizes = totals(calls, "dp_shard", simulated=3, rounds=10)
    assert counts["all_gather", "dp_shard", 4, 1] == 10
    assert sizes["all_gather", "dp_shard", 4, 1] == 1000
    assert counts["reduce_scatter", "dp_shard", 4, 1] == 1
    # Two micro-batches are simulated as they are.
    assert totals(calls[:2], "dp_shard", simulated=2, rounds=2)[0]["all_gather", "dp_shard", 4, 1] == 2


def test_groups_with_other_distances_are_other_lines() -> None:
    counts, _ = totals([call(ranks=(0, 4)), call(ranks=(0, 1)), call(ranks=(0,))], "dp", 1, 1)
    assert sorted(counts) == [("all_reduce", "dp", 1, 1), ("all_reduce", "dp", 2, 1), ("all_reduce", "dp", 2, 4)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["strategy=ddp"], "dp"),
        (["strategy=fsdp"], "dp_shard"),
        (["strategy=hsdp", "strategy.dp_replicate=2"], "dp_shard"),
        (["strategy=hsdp", "strategy.dp_replicate=4"], "dp_replicate"),
        (["strategy=ddp", "parallel.tp=4", "model.vocab_size=512", "data.vocab_size=512"], "tp"),
        (["strategy=fsdp", "parallel.cp=4"], "dp_shard"),  # States are sharded over the ranks of cp as well.
        (["strategy=ddp", "parallel.cp=4"], "dp"),
    ],
)
def test_the_dimension_of_all_ranks(overrides: list[str], expected: str) -> None:
    sizes = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=64"]
    assert whole_dimension(planned_job([*sizes, *overrides], None, 4).config, 4) == expected
