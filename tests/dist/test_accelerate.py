"""`engine=accelerate` trains as `strategy=ddp` alone does, and its buckets lie in communication regions."""

import dataclasses
import importlib.util
from typing import Any

import pytest

from dtk.config import schema
from tests.dist.engine_ranks import job
from tests.dist.ranks import run_ranks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="the package accelerate is not installed"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    ddp = job("ddp", micro_batch_size=4, bucket_cap_mb=0.05)
    cases = {
        "ddp": (ddp, None),
        "accelerate": (dataclasses.replace(ddp, engine="accelerate", record=schema.RecordConfig(level="light")), None),
        "accelerate bf16": (dataclasses.replace(job("ddp", steps=5, precision="bf16"), engine="accelerate"), None),
        "accelerate -> ddp": (job("ddp", steps=7), "accelerate"),
        "ddp -> accelerate": (dataclasses.replace(job("ddp", steps=7), engine="accelerate"), "ddp"),
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


@pytest.mark.parametrize("name", ["accelerate -> ddp", "ddp -> accelerate"])
def test_checkpoints_go_both_ways(runs: dict[str, dict[str, Any]], name: str) -> None:
    rest = runs[name.split(" ")[0]]["figures"][5:7]
    assert sum(runs[name]["figures"], ()) == pytest.approx(sum(rest, ()), rel=1e-5)
