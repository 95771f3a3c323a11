"""Stages of a pipeline on one rank: the gradients of the whole model, whatever the schedule. Messages: tests/dist."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dtk.config.schema import GPTConfig, PrecisionConfig
from dtk.data.dataset import Batch
from dtk.dimensions.pp import Messages, cut, joined
from dtk.models.build import build_model
from dtk.parallel.context import Context
from dtk.parallel.pipeline import Pipeline
from dtk.sharding.declared import Collective
from dtk.strategies.single import Single, SingleConfig
from dtk.tasks.cross_entropy import LanguageModeling
from dtk.train.pipeline import Clock, Pipelined
from dtk.train.runner import Stage
from tests.unit.rank_threads import whole_axis

CONFIG = GPTConfig(name="probe", vocab_size=11, context_length=8, layers=4, heads=2, width=8)
TOKENS = torch.randint(0, 11, (6, 8), generator=torch.Generator().manual_seed(1))
BATCHES = [Batch(TOKENS[i : i + 2], TOKENS[i : i + 2].roll(-1, 1)) for i in (0, 2, 4)]


def loss_of(model: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.roll(-1, 1).flatten(), reduction="sum")


def declared(number: int) -> Callable[[int], list[Collective]]:
    return lambda steps: [Collective("all_reduce", "tp", steps, number)]


def pipelined(place: Context, schedule: str, stages: int) -> tuple[Any, Any, Pipelined]:
    """(whole model, this rank's stages as one module, their runner)."""
    torch.manual_seed(2)
    whole = build_model(CONFIG, [])
    ends = [CONFIG.layers * number // stages for number in range(stages + 1)]
    cuts, parts = list(itertools.starmap(range, itertools.pairwise(ends))), []
    for number in range(stages):
        copy = build_model(CONFIG, [])
        copy.load_state_dict(whole.state_dict())
        parts.append(cut(copy, number, cuts))
    strategy = Single(SingleConfig(), place, PrecisionConfig())
    runner = Pipelined(
        strategy,
        lambda count: Pipeline(schedule, 1, count, stages),
        {number: Stage(part, part, declared(number)) for number, part in enumerate(parts)},
        Messages(whole_axis(0, 1, "pp")),
        lambda shape: (*shape, CONFIG.width),
        0,
        None,
        Clock(place.device),
        LanguageModeling(),
        None,
    )
    return whole, joined(parts), runner


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 4)],
)
def test_stages_have_the_gradients_of_the_whole_model(alone: Context, schedule: str, stages: int) -> None:
    whole, split, runner = pipelined(alone, schedule, stages)
    loss, seeds = loss_of(whole), []
    (0.5 * loss).backward()
    result = runner.run(BATCHES, 0.5, lambda number: seeds.append(number))
    assert torch.allclose(result, loss) and sorted(seeds) == sorted([0, 1, 2] * stages)
    own = dict(split.named_parameters())
    for name, parameter in whole.named_parameters():
        gradient = own[name].grad
        if name == "token_embedding.weight" and stages > 1:
            continue  # Tied: each end has the gradient of its own use.
        assert gradient is not None and torch.allclose(gradient, parameter.grad, atol=1e-5), name


def test_an_evaluation_goes_through_all_stages_without_gradients(alone: Context) -> None:
    whole, split, runner = pipelined(alone, "interleaved_1f1b", 2)
    with torch.no_grad():
        loss, count, correct, valid = runner.evaluate(iter(BATCHES)).tolist()
        assert loss == pytest.approx(float(loss_of(whole.eval())), rel=1e-5)
    assert (count, valid) == (48, 48) and 0 <= correct <= 48
    assert all(stage.model.training for stage in runner.stages.values())
    assert all(parameter.grad is None for parameter in split.parameters())


def test_each_stage_declares_its_own_and_the_bubble_is_a_share(alone: Context) -> None:
    _, _, runner = pipelined(alone, "interleaved_1f1b", 2)
    assert runner.collectives(3, clips=True) == [Collective("all_reduce", "tp", 3, number) for number in (0, 1)]
    runner.run(BATCHES, 1.0, lambda number: None)
    assert len(runner.clock.computed) == 2 * 2 * 3, "forward and backward of each stage and micro-batch"
    figures = runner.figures()
    assert 0 <= figures["pipeline_bubble"] < 1 and figures["pipeline_bubble_ideal"] == 0, "one rank never waits"
