"""Callbacks on two ranks: called at the same points, heard on all ranks, and no danger to a run that does not want it."""

from dataclasses import replace

import pytest

from dtk.config.schema import CallbackConfig, CheckpointConfig
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

HERE = "tests.dist.callback_ranks"
TRAIN = replace(config().train, steps=4, micro_batch_size=8, evaluate_every=2, evaluate_samples=4)


def case(name, strategy=DDPConfig(), steps=4, every=2, load=None, **arguments):
    keep_going = arguments.pop("keep_going", False)
    given = {
        "strategy": strategy,
        "train": replace(TRAIN, steps=steps, evaluate_every=every),
        "checkpoint": CheckpointConfig(every=2, at_end=False),
        "callbacks": [CallbackConfig(_target_=f"{HERE}.{name}", arguments=arguments, keep_going=keep_going)],
    }
    return given if load is None else {**given, "load": load}


CASES = {
    "notes": case("Notes"),
    "notes of shards": case("Notes", FSDPConfig()),
    "averages": case("Averages", decay=0.9),
    "averages of shards": case("Averages", FSDPConfig(), decay=0.9),
    "one rank": case("StopsOnOneRank", FSDPConfig(), steps=20),
    "raises": case("Raises"),
    "raises and goes on": case("Raises", keep_going=True),
    "patience": case("Never", steps=20, patience=2),
    "interrupted": case("Never", steps=4, patience=2),
    "resumed": case("Never", steps=20, patience=2, load="interrupted"),
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
        found = rank["one rank"]
        assert (found["finished"], found["enough"], found["step"], found["error"]) == (True, True, 4, "")
    assert [rank["one rank"]["reason"] for rank in results] == ["", "enough seen"]


def test_one_that_raises_fails_the_run_unless_it_is_to_go_on(results):
    for rank in results:
        assert rank["raises"]["error"] == "ValueError: bad callback" and rank["raises"]["step"] == 1
        assert rank["raises and goes on"]["error"] == "" and rank["raises and goes on"]["step"] == 4


def test_patience_is_counted_on_after_a_resume(results):
    """Evaluations after steps 2 (the best), 4 and 6: the run ends with step 7, also when it was interrupted after 4."""
    for rank in results:
        for name in ("patience", "resumed"):
            assert (rank[name]["step"], rank[name]["enough"]) == (7, True), name
            assert rank[name]["reason"] == "validation_loss has not improved on 2.0000 in 2 evaluations"
        assert (rank["interrupted"]["step"], rank["interrupted"]["enough"]) == (4, False)
