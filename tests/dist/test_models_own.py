"""A model of the user's own, without anything that dtk's models have: reproducible, resumable, exported whole."""

from dataclasses import replace

import pytest

from dtk.config import schema
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from tests.dist.own_models import OWN
from tests.dist.ranks import run_ranks
from tests.dist.training_ranks import config

STRATEGIES = {"ddp": DDPConfig(), "fsdp": FSDPConfig()}
TRAIN = replace(config().train, steps=8)


def case(strategy, **more):
    """Eight steps of two micro-batches each on two ranks; dropout in every block."""
    return {
        "model": OWN,
        "allow_targets": ["tests.dist.own_models.*"],
        "strategy": STRATEGIES[strategy],
        "schedule": schema.ConstantSchedule(),
        "train": replace(TRAIN, micro_batch_size=4, evaluate_every=0),
        **more,
    }


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Each strategy's curve twice, and once from the checkpoint of step 4."""
    half = {
        "checkpoint": schema.CheckpointConfig(every=4, at_end=False),
        "train": replace(TRAIN, micro_batch_size=4, steps=6),
    }
    cases = []
    for name in STRATEGIES:
        cases += [(f"{name} half", case(name, **half), None), (f"{name} resumed", case(name), f"{name} half")]
        cases += [(name, case(name), None), (f"{name} again", case(name), None)]
    cases.append(("another seed", case("ddp", seed=5), None))
    return run_ranks("tests.dist.training_ranks:save_and_load", 2, cases, str(tmp_path_factory.mktemp("own")))[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", STRATEGIES)
def test_dropout_is_reproducible_and_resumes_exactly(losses, name):
    assert losses[f"{name} again"] == losses[name]
    assert losses[f"{name} resumed"] == losses[name][4:]
    assert losses["another seed"] != losses["ddp"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_running_statistics_are_those_of_one_rank_also_after_a_resume(losses, name):
    """An evaluation reads them: it tells whose were evaluated, and whose were stored."""
    assert losses[f"{name} resumed: validation"] == losses[f"{name}: validation"] > 0


def test_dropout_is_alike_under_both_strategies(losses):
    assert losses["fsdp"] == pytest.approx(losses["ddp"], abs=1e-4)


@pytest.mark.timeout(60)
def test_blocks_are_units_of_sharding_and_recomputation():
    fsdp, every = STRATEGIES["fsdp"], replace(TRAIN, activation_checkpoint_every=2)
    cases = {
        "found": {"strategy": fsdp, "train": every},
        "named": {"strategy": fsdp, "model": replace(OWN, wrap=["steps.1", "steps.0.u*"]), "train": every},
        "none": {"strategy": fsdp, "model": replace(OWN, arguments={"layers": 1})},
        "none to recompute": {"strategy": fsdp, "model": replace(OWN, arguments={"layers": 1}), "train": every},
        "wrong name": {"strategy": fsdp, "model": replace(OWN, wrap=["Blok"])},
    }
    results = run_ranks("tests.dist.own_models:set_up_with", 2, {name: {**case} for name, case in cases.items()})[0]
    assert results["found"] == (["", "steps.0", "steps.1", "steps.2"], 2, "")
    assert results["named"][0] == ["", "steps.0.up", "steps.1"]
    assert results["none"] == ([""], 0, "")
    assert "train.activation_checkpoint_every=2 works on the blocks of a model" in results["none to recompute"][2]
    assert "model.wrap=Blok matches no module" in results["wrong name"][2]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", STRATEGIES)
def test_an_export_loads_strictly_with_buffers_and_tied_weights(tmp_path, name):
    changes = {"strategy": STRATEGIES[name], "train": replace(TRAIN, steps=2)}
    assert run_ranks("tests.dist.own_models:exported", 2, changes, str(tmp_path))[0] == []
