"""Pipelines train like `single`: gradients by name, their norm, losses; what they send is what they declare."""

from collections import Counter
from dataclasses import replace

import pytest

from dtk.config import schema
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.zero1 import Zero1Config
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

GPT = schema.GPTConfig(name="probe", vocab_size=256, context_length=64, layers=5, heads=4, width=32)
"""Its token embedding is the output projection too: the first and the last stage share it."""
LLAMA = schema.LlamaConfig(name="probe", vocab_size=256, context_length=64, layers=4, width=32, ffn_width=88)
TRAIN = replace(config().train, global_batch_size=12)
"""6 micro-batches, or 3 on two data-parallel ranks: no multiple of four stages, or of two."""
MODELS = {"gpt": {"model": GPT, "train": TRAIN}, "llama": {"model": LLAMA, "train": TRAIN}}


def case(model, strategy, schedule="1f1b", pp=2, mutation="", train=TRAIN, **parallel):
    more = {"mutation": mutation, "parallel": schema.ParallelConfig(pp=pp, schedule=schedule, **parallel)}
    return {**MODELS[model], "train": train, "strategy": strategy, **more}


KEEP = FSDPConfig(reshard_after_forward=False)
MUTATIONS = ("no sum of the shared weights", "shared weights count twice")
TWO = {
    "gpt gpipe": case("gpt", DDPConfig(), "gpipe"),
    "gpt 1f1b": case("gpt", DDPConfig()),
    "llama 1f1b": case("llama", DDPConfig()),
    "gpt interleaved": case("gpt", DDPConfig(), "interleaved_1f1b", stages_per_rank=2),
    "gpt zero_bubble": case("gpt", DDPConfig(), "zero_bubble"),
    "llama zero_bubble": case("llama", DDPConfig(), "zero_bubble"),
    "gpt zero_bubble, 2 stages": case("gpt", DDPConfig(), "zero_bubble", stages_per_rank=2),
    "gpt looped_bfs": case("gpt", DDPConfig(), "looped_bfs", stages_per_rank=2),
    "llama zbv": case("llama", DDPConfig(), "zbv", stages_per_rank=2),
    "gpt fsdp": case("gpt", FSDPConfig()),
    **{f"gpt {mutation}": case("gpt", DDPConfig(), mutation=mutation) for mutation in MUTATIONS},
}
FOUR = {
    "gpt ddp": case("gpt", DDPConfig()),
    "gpt ddp bf16 hook": case("gpt", DDPConfig(communication_hook="bf16")),
    "gpt gpipe fsdp": case("gpt", FSDPConfig(), "gpipe"),
    "llama 1f1b fsdp": case("llama", FSDPConfig()),
    "gpt interleaved fsdp": case("gpt", KEEP, "interleaved_1f1b", stages_per_rank=2),
    "gpt zero1": case("gpt", Zero1Config()),
    "llama zero1 tp recomputed": case(
        "llama", Zero1Config(), tp=2, train=replace(TRAIN, activation_checkpoint_every=2)
    ),
    "gpt four stages": case("gpt", DDPConfig(), pp=4),
    "gpt tp recomputed": case("gpt", FSDPConfig(), tp=2, train=replace(TRAIN, activation_checkpoint_every=2)),
    "llama looped_bfs fsdp": case("llama", FSDPConfig(), "looped_bfs", stages_per_rank=2),
    "llama zbv zero1 tp": case("llama", Zero1Config(), "zbv", stages_per_rank=2, tp=2),
    "gpt zero_bubble ddp": case("gpt", DDPConfig(), "zero_bubble"),
    "gpt zero_bubble zero1": case("gpt", Zero1Config(), "zero_bubble"),
    "llama zero_bubble ddp tp": case("llama", DDPConfig(), "zero_bubble", tp=2),
    "gpt ring": case("gpt", DDPConfig(), cp=2, context="ring"),
    "llama ulysses fsdp": case("llama", FSDPConfig(), "gpipe", cp=2, context="ulysses"),
    "llama tp interleaved": case(
        "llama", DDPConfig(), "interleaved_1f1b", stages_per_rank=2, tp=2, sequence_parallel=False
    ),
}
LOSSY = {"gpt ddp bf16 hook": 1e-2}


@pytest.fixture(scope="module")
def single():
    return run_ranks("tests.dist.pipeline_ranks:steps", 1, MODELS)[0]


@pytest.fixture(scope="module", params=[2, 4])
def pipelines(request):
    cases = TWO if request.param == 2 else FOUR
    return run_ranks("tests.dist.pipeline_ranks:steps", request.param, cases)


def differences(ranks, name, expected):
    """(relative difference of the norm, largest difference of a gradient), after all names were seen."""
    grads = [(key, gradient) for rank in ranks for key, gradient in rank[name]["gradients"].items()]
    assert {key for key, _ in grads} == set(expected["gradients"]), name
    norms = {rank[name]["norm"] for rank in ranks}
    assert len(norms) == 1, f"{name}: ranks disagree about the norm"
    worst = max(float((gradient - expected["gradients"][key]).abs().max()) for key, gradient in grads)
    return abs(norms.pop() / expected["norm"] - 1), worst


@pytest.mark.timeout(200)
def test_gradients_and_their_norm_are_those_of_single(single, pipelines):
    for name in (name for name in pipelines[0] if not name.endswith(MUTATIONS)):
        expected = single[name.split()[0]]
        assert sum(rank[name]["loss"] for rank in pipelines) == pytest.approx(expected["loss"], rel=1e-6), name
        norm, worst = differences(pipelines, name, expected)
        assert norm < LOSSY.get(name, 1e-6) and worst < LOSSY.get(name, 1e-7), name


@pytest.mark.timeout(200)
def test_what_is_declared_is_sent(pipelines):
    for name in (name for name in pipelines[0] if not name.endswith(MUTATIONS)):
        for rank, results in enumerate(pipelines):
            declared, by_op = results[name]["declared"], Counter()
            assert results[name]["regions"] == declared, f"{name}, rank {rank}"
            for (op, _), figures in declared.items():
                by_op.update({(op, i): figure for i, figure in enumerate(figures)})
            wire = {
                (op, i): figure for (op,), figures in results[name]["wire"].items() for i, figure in enumerate(figures)
            }
            assert wire == by_op, f"{name}, rank {rank}: on the wire"


@pytest.mark.timeout(200)
def test_mistakes_with_shared_weights_are_noticed(single, pipelines):
    for name in (name for name in pipelines[0] if name.endswith(MUTATIONS)):
        norm, worst = differences(pipelines, name, single["gpt"])
        assert norm > 1e-3
        assert (worst > 1e-3) == name.endswith(MUTATIONS[0])


@pytest.mark.timeout(200)
def test_losses_and_checkpoints_go_on_under_other_layouts(tmp_path):
    """20 steps: a pipeline, then fsdp, then another pipeline; and single from the first one's checkpoint."""

    def upto(steps, **changes):
        return {
            "model": GPT,
            "train": replace(TRAIN, steps=steps, evaluate_every=0, evaluate_samples=10),
            "checkpoint": schema.CheckpointConfig(at_end=True),
            # A schedule that does not know how long the run is, as each case ends at another step.
            "schedule": schema.ConstantSchedule(),
            **changes,
        }

    first = {"strategy": DDPConfig(), "parallel": schema.ParallelConfig(pp=2)}
    looped = {
        "strategy": FSDPConfig(),
        "parallel": schema.ParallelConfig(pp=2, schedule="interleaved_1f1b", stages_per_rank=2),
    }
    cases = [
        ("first", upto(8, **first), None),
        ("fsdp", upto(14, strategy=FSDPConfig()), "first"),
        ("looped", upto(20, **looped), "fsdp"),
    ]
    run = "tests.dist.training_ranks:save_and_load"
    ranks = run_ranks(run, 2, cases, str(tmp_path))
    alone = run_ranks(run, 1, [("whole", upto(20), None), ("resumed", upto(20), "first")], str(tmp_path))[0]
    for results in ranks:
        losses = [*results["first"], *results["fsdp"], *results["looped"]]
        assert losses == pytest.approx(alone["whole"], rel=1e-5)
    assert alone["resumed"] == pytest.approx(alone["whole"][8:], rel=1e-5)
