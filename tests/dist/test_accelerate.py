"""`engine=accelerate` trains as `strategy=ddp` alone does, and its buckets lie in communication regions."""

import dataclasses
import importlib.util
from typing import Any

import pytest

from dtk.config import schema
from dtk.config.schema import Config
from tests.dist.engine_ranks import job
from tests.dist.ranks import run_ranks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="the package accelerate is not installed"
)


def accelerated(strategy: str, **keys: Any) -> Config:
    recorded = schema.RecordConfig(level="light")
    return dataclasses.replace(job(strategy, **keys), engine="accelerate", record=recorded)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    ddp = job("ddp", micro_batch_size=4, bucket_cap_mb=0.05)
    cases = {
        "ddp": (ddp, None),
        "accelerate": (dataclasses.replace(ddp, engine="accelerate", record=schema.RecordConfig(level="light")), None),
        "accelerate bf16": (dataclasses.replace(job("ddp", steps=5, precision="bf16"), engine="accelerate"), None),
        "accelerate -> ddp": (job("ddp", steps=7), "accelerate"),
        "ddp -> accelerate": (dataclasses.replace(job("ddp", steps=7), engine="accelerate"), "ddp"),
        "fsdp": (job("fsdp", micro_batch_size=4), None),
        "accelerate fsdp": (accelerated("fsdp", micro_batch_size=4), None),
        "zero2 bf16": (job("zero2", steps=5, precision="bf16"), None),
        "accelerate zero2 bf16": (accelerated("zero2", steps=5, precision="bf16"), None),
        "accelerate fsdp -> ddp": (job("ddp", steps=7), "accelerate fsdp"),
        "fsdp -> accelerate fsdp": (accelerated("fsdp", steps=7), "fsdp"),
    }
    return run_ranks("tests.dist.engine_ranks:train", 2, cases, str(tmp_path_factory.mktemp("accelerate")))[0]


def test_it_trains_as_ddp(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["accelerate"]["began"] == runs["ddp"]["began"]
    ours, theirs = sum(runs["ddp"]["figures"], ()), sum(runs["accelerate"]["figures"], ())
    assert theirs == pytest.approx(ours, rel=1e-6)
    rounded = sum(runs["accelerate bf16"]["figures"], ())
    assert rounded != ours[:10] and rounded == pytest.approx(ours[:10], rel=5e-2)


def test_what_is_declared_is_sent_in_regions(runs: dict[str, dict[str, Any]]) -> None:
    run = runs["accelerate"]
    calls, size = run["declared"]["all_reduce", "dp"]
    assert run["regions"]["all_reduce", "dp"] == (calls + 1, size + 4), "and the loss of a logged step"


def test_fsdp2_is_sharded_and_trains_as_fsdp(runs: dict[str, dict[str, Any]]) -> None:
    """One unit more than fsdp has, as Accelerate makes one of the final norm."""
    ours, run = runs["fsdp"], runs["accelerate fsdp"]
    assert run["began"] == ours["began"]
    assert sum(run["figures"], ()) == pytest.approx(sum(ours["figures"], ()), rel=1e-6)
    for op, more in {"all_gather": 2, "reduce_scatter": 1}.items():  # In two micro-batches, and in the last one.
        calls, size = ours["declared"][op, "dp_shard"]
        assert run["declared"][op, "dp_shard"] == (calls + more, size) == run["regions"][op, "dp_shard"]


def test_zero2_in_16_bit_gathers_once(runs: dict[str, dict[str, Any]]) -> None:
    ours, run = runs["zero2 bf16"], runs["accelerate zero2 bf16"]
    assert sum(run["figures"], ()) == pytest.approx(sum(ours["figures"], ()), rel=1e-6)
    assert run["figures"][0] != runs["fsdp"]["figures"][0]
    assert {call: run["regions"][call] for call in run["declared"]} == run["declared"]


@pytest.mark.parametrize(
    "name", ["accelerate -> ddp", "ddp -> accelerate", "accelerate fsdp -> ddp", "fsdp -> accelerate fsdp"]
)
def test_checkpoints_go_both_ways(runs: dict[str, dict[str, Any]], name: str) -> None:
    rest = runs[name.split(" -> ")[0]]["figures"][5:7]
    assert sum(runs[name]["figures"], ()) == pytest.approx(sum(rest, ()), rel=1e-5)
