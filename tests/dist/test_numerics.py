"""One rank's figures really go wrong; every rank records what it knows, and `numerics` finds the rank."""

from pathlib import Path

import pytest

from dtk.config import schema
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.zero1 import Zero1Config
from tests.dist.ranks import run_ranks

DDP = {"strategy": DDPConfig()}
TWO = {
    "healthy": ("", DDP),
    "healthy zero1": ("", {"strategy": Zero1Config()}),
    "healthy powersgd": ("", {"strategy": DDPConfig(communication_hook="powersgd", bucket_cap_mb=0.02)}),
    "healthy bf16": ("", {**DDP, "precision": schema.PrecisionConfig(name="bf16", compute_dtype="bfloat16")}),
    "healthy fsdp": ("", {"strategy": FSDPConfig()}),
    "nan": ("nan", DDP),
    "nan seldom logged": ("nan", {**DDP, "log_every": 8}),
    "gradient": ("gradient", DDP),
    "drift": ("drift", DDP),
    "healthy tp": ("", {**DDP, "parallel": schema.ParallelConfig(tp=2)}),
    "drift tp": ("drift norm", {**DDP, "parallel": schema.ParallelConfig(tp=2)}),
}
FOUR = {
    "healthy hsdp": ("", {"strategy": HSDPConfig(dp_replicate=2)}),
    "drift hsdp": ("drift", {"strategy": HSDPConfig(dp_replicate=2)}),
    "drift ddp": ("drift", DDP),
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return run_ranks("tests.dist.numerics_ranks:run_all", 2, str(folder), TWO), Path(folder)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    return run_ranks("tests.dist.numerics_ranks:run_all", 4, str(folder), FOUR)


def names(events):
    return [event["name"] for event in events]


@pytest.mark.timeout(120)
def test_replicas_of_a_healthy_run_are_equal(two, four):
    for case in ("healthy", "healthy zero1", "healthy powersgd", "healthy bf16", "healthy tp"):
        assert names(two[0][0][case]) == ["replicas_equal"] * 4
        assert two[0][1][case] == []
    assert names(four[0]["healthy hsdp"]) == ["replicas_equal"] * 4
    assert two[0][0]["healthy fsdp"] == [], "shards have no replica to compare with"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", ["nan", "nan seldom logged"])
def test_the_rank_whose_loss_is_nan_is_the_first_to_say_so(two, case):
    ranks, _ = two
    losses = [[e for e in rank[case] if e["name"] == "non_finite" and e["figure"] == "loss"] for rank in ranks]
    assert [(loss[0]["step"], loss[0]["value"]) for loss in losses] == [(6, "nan"), (5, "nan")]
    norms = [[e for e in rank[case] if e["name"] == "non_finite" and e["figure"] == "grad_norm"] for rank in ranks]
    assert [norm[0]["step"] for norm in norms] == [5, 5], "the reduced gradient is the same on all ranks"
    assert all(len(result) == 1 for result in [*losses, *norms]), "the first time only"
    assert "replica_divergence" not in names(ranks[0][case]), "NaN is not drift"


@pytest.mark.timeout(120)
def test_the_parameter_is_named_when_the_loss_was_still_finite(two):
    event = two[0][0]["gradient"][1]
    assert (event["figure"], event["step"]) == ("grad_norm", 3)
    assert event["parameter"] == "blocks.1.mlp.up.weight"
    assert event["parameters_affected"] == 1 < event["parameters_seen"]


@pytest.mark.timeout(120)
def test_one_weight_that_differs_is_found(two):
    ranks, _ = two
    for rank in ranks:
        event = rank["drift"][-1]
        assert (event["name"], event["step"]) == ("replica_divergence", 4)
        assert (event["ranks"], event["tie"], event["group"]) == ([0, 1], True, [0, 1])
    assert ranks[1]["drift"][-1]["parameter"] == "blocks.1.mlp.up.weight"
    assert ranks[1]["drift"][-1]["parameters_affected"] == 1


@pytest.mark.timeout(120)
def test_under_tensor_parallel_what_every_rank_has_whole_is_compared(two):
    for rank in two[0]:
        event = rank["drift tp"][-1]
        assert (event["name"], event["dimension"], event["group"]) == ("replica_divergence", "tp", [0, 1])
        assert event["parameters_seen"] == 3 * 6 + 3, "norms, biases behind the projections, positions"
    assert two[0][1]["drift tp"][-1]["parameter"] == "blocks.1.mlp_norm.weight"


@pytest.mark.timeout(120)
def test_of_four_replicas_the_odd_one_is_named(four):
    assert [names(rank["drift ddp"])[-1:] for rank in four] == [["replica_divergence"]] * 4
    assert all(rank["drift ddp"][-1]["ranks"] == [1] for rank in four)
    assert not four[0]["drift ddp"][-1]["tie"]


@pytest.mark.timeout(120)
def test_under_hsdp_only_the_replicas_of_the_shard_are_concerned(four):
    assert [names(rank["drift hsdp"])[-1:] for rank in four] == [
        ["replicas_equal"], ["replica_divergence"], [], ["replica_divergence"],
    ]  # fmt: skip
    assert four[3]["drift hsdp"][-1]["group"] == [1, 3]
