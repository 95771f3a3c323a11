"""Callbacks on two ranks: called at the same points, heard on all ranks, and no danger to a run without them."""

from dataclasses import replace

import pytest
import torch

from dtk.config.schema import CallbackConfig, CheckpointConfig, ConstantSchedule, RecordConfig
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

HERE = "tests.dist.callback_ranks"
TRAIN = replace(config().train, steps=4, micro_batch_size=8, evaluate_every=2, evaluate_samples=4)
DDP = DDPConfig()


def case(name, strategy=DDP, steps=4, every=2, load=None, **arguments):
    keep_going = arguments.pop("keep_going", False)
    given = {
        "strategy": strategy,
        "train": replace(TRAIN, steps=steps, evaluate_every=every),
        "checkpoint": CheckpointConfig(every=2, at_end=False),
        "callbacks": [CallbackConfig(_target_=f"{HERE}.{name}", arguments=arguments, keep_going=keep_going)],
    }
    return given if load is None else {**given, "load": load}


EMA = "dtk.train.builtin.EMA"


def several(names, strategy=DDP, steps=4, load=None, **arguments):
    """Callbacks together; the arguments are those of the first."""
    given = case("Notes", strategy, steps, load=load)
    sections = [
        CallbackConfig(_target_=name if "." in name else f"{HERE}.{name}", arguments={} if i else arguments)
        for i, name in enumerate(names)
    ]
    constant = {"schedule": ConstantSchedule(), "record": RecordConfig()}
    return {**given, **constant, "callbacks": sections}


CASES = {
    "notes": case("Notes"),
    "notes of shards": case("Notes", FSDPConfig()),
    "averages": case("Averages", decay=0.9),
    "averages of shards": case("Averages", FSDPConfig(), decay=0.9),
    "one rank": case("StopsOnOneRank", FSDPConfig(), steps=20),
    "raises": case("Raises"),
    "raises and continues": case("Raises", keep_going=True),
    "patience": case("Never", steps=20, patience=2),
    "interrupted": case("Never", steps=4, patience=2),
    "resumed": case("Never", steps=20, patience=2, load="interrupted"),
    "ema": several([EMA, "Weights"], decay=0.5),
    "ema of shards": several([EMA, "Weights"], FSDPConfig(), decay=0.5),
    "ema, half": several([EMA], FSDPConfig(), steps=2, decay=0.5, at_end=False),
    "ema, resumed": several([EMA, "Weights"], FSDPConfig(), load="ema, half", decay=0.5),
    "best": case("Figures", steps=8, every=2),
    "norms": several(["dtk.train.builtin.BlockNorms", "dtk.train.builtin.Samples"]),
    "norms of shards": several(["dtk.train.builtin.BlockNorms", "dtk.train.builtin.Samples"], FSDPConfig()),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_ranks(f"{HERE}:run_all", 2, CASES, str(tmp_path_factory.mktemp("callbacks")))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["notes", "notes of shards"])
def test_every_rank_is_called_at_the_same_points(results, name):
    calls = results[0][name]["calls"]
    assert calls == results[1][name]["calls"]
    assert [call[:2] for call in calls] == [
        ("before", 1), ("after", 1), ("before", 2), ("after", 2), ("evaluation", 2), ("checkpoint", 2),
        ("before", 3), ("after", 3), ("before", 4), ("after", 4), ("evaluation", 4), ("checkpoint", 4),
    ]  # fmt: skip


def test_the_model_is_the_ranks_part_of_it(results):
    whole = results[0]["averages"]["elements"]
    assert sum(rank["averages of shards"]["elements"] for rank in results) == whole > 0


def test_what_one_rank_asks_for_all_ranks_do(results):
    """It asks after step 3; the exchange of step 4 tells the others."""
    for rank in results:
        result = rank["one rank"]
        assert (result["finished"], result["enough"], result["step"], result["error"]) == (True, True, 4, "")
    assert [rank["one rank"]["reason"] for rank in results] == ["", "enough seen"]


def test_one_that_raises_fails_the_run_unless_it_is_to_go_on(results):
    for rank in results:
        assert rank["raises"]["error"] == "ValueError: bad callback" and rank["raises"]["step"] == 1
        assert rank["raises and continues"]["error"] == "" and rank["raises and continues"]["step"] == 4


def test_patience_is_counted_on_after_a_resume(results):
    """Evaluations after steps 2 (the best), 4 and 6: the run ends with step 7, also when it was interrupted after 4."""
    for rank in results:
        for name in ("patience", "resumed"):
            assert (rank[name]["step"], rank[name]["enough"]) == (7, True), name
            assert rank[name]["reason"] == "validation_loss has not improved on 2.0000 in 2 evaluations"
        assert (rank["interrupted"]["step"], rank["interrupted"]["enough"]) == (4, False)


@pytest.mark.parametrize("name", ["ema", "ema of shards", "ema, resumed"])
def test_averages_are_those_of_all_steps_and_what_the_run_ends_with(results, name):
    """Also on shards, and also when the first two steps were made by an earlier attempt."""
    extra = results[0][name]["extra"]
    weights = results[0]["ema of shards" if "resumed" in name else name]["extra"]["weights"]
    if "resumed" in name:
        weights = [*weights[:2], *extra["weights"]]
    assert len(weights) == extra["steps"] == 4
    for parameter, average in extra["model"].items():
        expected, share = 0, 0
        for value in weights:
            expected, share = 0.5 * expected + 0.5 * value[parameter], 0.5 * share + 0.5
        torch.testing.assert_close(average, expected / share, rtol=1e-5, atol=1e-7)
        assert not torch.equal(average, weights[-1][parameter])
    assert results[0]["ema of shards"]["elements"] < results[0]["ema"]["elements"]


def test_an_evaluation_is_of_the_averages_and_training_goes_on_with_the_weights(results):
    """The curves of training are alike with and without; what was evaluated at step 4 is not."""
    rows = {name: results[0][name]["extra"]["metrics"] for name in ("ema", "norms")}
    losses = {name: [row["loss"] for row in result if "loss" in row] for name, result in rows.items()}
    assert losses["ema"] == losses["norms"]
    last = {
        name: [row["validation_loss"] for row in result if "validation_loss" in row][-1]
        for name, result in rows.items()
    }
    assert last["ema"] != last["norms"]


def test_the_best_checkpoint_is_kept_beside_the_newest(results):
    extra = results[0]["best"]["extra"]
    assert extra["best"] == {"step": 4, "metric": "validation_loss", "value": 1.0}
    assert extra["checkpoints"] == ["step_00000004", "step_00000006", "step_00000008"]


def test_norms_and_samples_are_recorded_and_alike_under_both_strategies(results):
    rows = {name: results[0][name]["extra"]["metrics"] for name in ("norms", "norms of shards")}
    norms = {name: [row for row in value if "grad_norm/blocks.0" in row] for name, value in rows.items()}
    assert [row["step"] for row in norms["norms"]] == [1, 2, 3, 4]
    for plain, sharded in zip(norms["norms"], norms["norms of shards"], strict=True):
        assert {f"{kind}_norm/blocks.{i}" for kind in ("grad", "weight") for i in range(3)} <= plain.keys()
        for key in plain.keys() & {key for key in plain if "/" in key}:
            assert sharded[key] == pytest.approx(plain[key], rel=1e-3) and plain[key] > 0
    for result in rows.values():
        texts = [row["samples"] for row in result if "samples" in row]
        assert len(texts) == 2 and all(text[0].startswith("The ") and len(text[0]) > 10 for text in texts)
