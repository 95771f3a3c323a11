"""Evaluation is exact for uneven sizes: the same figures on 1, 2 and 4 ranks, no right answer counted twice."""

from dataclasses import replace

import numpy as np
import pytest

from dtk.config import schema
from dtk.data.sampler import permute
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.single import SingleConfig
from tests.dist.own_task import Points
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

STRATEGIES = {"ddp": DDPConfig(), "fsdp": FSDPConfig()}
ENCODER = schema.EncoderConfig(name="probe", vocab_size=257, context_length=64, layers=2, heads=4, width=32, classes=8)
LABELLED = schema.ClassificationData(sequence_length=32, samples_per_class=30, validation_fraction=0.2)
LINE = schema.CustomModelConfig(name="line", _target_="tests.dist.own_task.Line")
POINTS = schema.CustomData(_target_="tests.dist.own_task.Points", validation_fraction=0.2)
OWN = schema.TaskConfig(_target_="tests.dist.own_task.Relative")


def evaluated(samples, micro_batch_size):
    train = config().train
    return replace(train, evaluate_samples=samples, micro_batch_size=micro_batch_size)


# Sizes that neither 2 nor 4 ranks nor the micro-batch divide; 3 samples leave a rank of 4 without any.
TASKS = {
    "language": {"train": evaluated(45, 2)},
    "few samples": {"train": evaluated(3, 2)},
    "classes": {"model": ENCODER, "data": LABELLED, "train": evaluated(None, 5)},
    "some classes": {"model": ENCODER, "data": LABELLED, "train": evaluated(43, 4)},
    "part of the classes": {"model": ENCODER, "data": LABELLED, "train": evaluated(12, 4)},
    "own": {"model": LINE, "data": POINTS, "task": OWN, "allow_targets": ["tests.*"], "train": evaluated(None, 4)},
}
SAMPLES = {"own": 23, "language": 45, "few samples": 3, "classes": 48, "some classes": 43, "part of the classes": 12}


@pytest.fixture(scope="module")
def figures():
    """(task, strategy, world size) -> the figures of every rank."""
    by_task = {}
    for world_size in (1, 2, 4):
        strategies = STRATEGIES if world_size > 1 else {"single": SingleConfig()}
        cases = {
            (task, name): {**changes, "strategy": strategy}
            for task, changes in TASKS.items()
            for name, strategy in strategies.items()
        }
        ranks = run_ranks("tests.dist.evaluation_ranks:evaluate_all", world_size, cases)
        for task, name in cases:
            by_task[task, name, world_size] = [results[task, name] for results in ranks]
    return by_task


@pytest.mark.timeout(240)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_same_on_any_number_of_ranks(figures, task, strategy, world_size):
    (alone,) = figures[task, "single", 1]
    for here in figures[task, strategy, world_size]:
        assert here["validation_samples"] == alone["validation_samples"] == SAMPLES[task]
        assert here["validation_loss"] == pytest.approx(alone["validation_loss"], abs=1e-5)
        for name in (name for name in alone if name.startswith("validation_")):
            assert here[name] == pytest.approx(alone[name], abs=0 if name == "validation_accuracy" else 1e-5)


def test_a_part_of_the_held_out_split_has_samples_of_many_classes(figures):
    """The rows stand in class order, six of each of the eight classes: the first twelve are of two."""
    (alone,) = figures["part of the classes", "single", 1]
    assert 5 <= alone["validation_classes"] <= 8
    assert figures["classes", "single", 1][0]["validation_classes"] == 8
    for strategy in STRATEGIES:
        for here in figures["part of the classes", strategy, 4]:
            assert here["validation_classes"] == alone["validation_classes"]
    assert "validation_classes" not in figures["language", "single", 1][0]


def test_a_metric_of_ones_own_is_divided_once(figures):
    """Mean over all held-out points, most of them on one side: not the mean of the ranks' means."""
    (alone,) = figures["own", "single", 1]
    held_out = [Points()[i][1] for i in permute(np.arange(92, 115), 115, "split").tolist()]
    assert alone["validation_positive"] == pytest.approx(sum(map(bool, (y > 0 for y in held_out))) / 23)


def test_a_metric_of_torchmetrics_is_that_of_all_samples(figures):
    pytest.importorskip("torchmetrics")
    (alone,) = figures["own", "single", 1]
    rank = lambda values: np.argsort(np.argsort(values))  # noqa: E731
    held_out = np.array([Points()[i][1] for i in permute(np.arange(92, 115), 115, "split").tolist()])
    expected = np.corrcoef(rank(held_out), rank(abs(held_out - 0.45)))[0, 1]
    assert abs(alone["validation_correlation"]) == pytest.approx(abs(expected), abs=1e-5)


@pytest.mark.parametrize("task", [task for task in TASKS if task != "own"])
def test_accuracy_is_a_share(figures, task):
    """A count of right answers over the samples: never above 1, not even by padding."""
    (alone,) = figures[task, "single", 1]
    targets = SAMPLES[task] * (1 if "classes" in task else config().data.sequence_length)
    assert 0.0 <= alone["validation_accuracy"] <= 1.0
    right = alone["validation_accuracy"] * targets
    assert right == pytest.approx(round(right), abs=1e-6)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_model_that_is_always_right_has_accuracy_one(world_size):
    """Nine samples in micro-batches of two: whatever a rank fills up with must count on neither side."""
    for figures in run_ranks("tests.dist.evaluation_ranks:evaluate_oracle", world_size, 9):
        assert figures["validation_accuracy"] == 1.0
        assert figures["validation_samples"] == 9.0
