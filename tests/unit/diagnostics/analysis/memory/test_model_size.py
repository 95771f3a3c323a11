"""Sizes of models and of their states, against the ZeRO paper and the published sizes of GPT-2."""

import json

import pytest
from msgspec.structs import replace

from diagnostics.analysis.memory import model_size
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.evidence.job.run_folder import read
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.traits import recorded_traits, traits_of

GB = 10**9


def paper(strategy: str, shards: int) -> ModelSize:
    """7.5 billion parameters, 16 bytes each all in all, on 64 ranks: table of the ZeRO paper, in our fp32 terms."""
    whole = 30 * GB
    return ModelSize(64, strategy, whole, whole, 2 * whole, "test", shards, traits=traits_of(strategy))


def test_states_follow_the_formulas_of_zero():
    assert paper("ddp", 1).states().total == 120 * GB
    assert paper("zero1", 1).states().total == 60 * GB + 60 * GB // 64
    assert paper("zero3", 64).states().total == pytest.approx(120 * GB / 64, rel=1e-6)
    assert paper("zero3", 64).states(1024).total == pytest.approx(120 * GB / 1024, rel=1e-6)
    hybrid = replace(paper("hsdp", 8), replicas=8)
    assert hybrid.states().total == pytest.approx(120 * GB / 8, rel=1e-6)
    assert ModelSize(64, "").states() is None


@pytest.mark.parametrize(
    ("layers", "width", "vocab", "count"), [(12, 768, 50257, 124_439_808), (48, 1600, 50257, 1_557_611_200)]
)
def test_parameters_of_gpt2_by_the_configuration(tmp_path, layers, width, vocab, count):
    model = {"architecture": "gpt", "layers": layers, "width": width, "vocab_size": vocab, "context_length": 1024}
    config = {"model": model, "strategy": {"name": "ddp"}, "optimizer": {"name": "adamw"}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    size = model_size.read(Evidence(tmp_path, Limits(), run=read(tmp_path, Limits(), []), world_size=2))
    assert size.parameter_bytes == 4 * count
    assert size.optimizer_bytes == 8 * count


@pytest.mark.parametrize(("strategy", "shards", "replicas"), [("ddp", 1, 1), ("fsdp", 4, 2), ("hsdp", 2, 4)])
def test_a_rank_of_a_model_that_is_cut_has_its_part_of_the_states(tmp_path, strategy, shards, replicas):
    model = {"architecture": "gpt", "layers": 12, "width": 768, "vocab_size": 50258, "context_length": 1024}
    section = {"name": strategy, **({"dp_replicate": 2, "dp_shard": -1} if strategy == "hsdp" else {})}
    config = {"model": model, "strategy": section, "optimizer": {"name": "adamw"}, "parallel": {"tp": 2}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    (tmp_path / "manifest.json").write_text(json.dumps(recorded_traits(strategy)))
    size = model_size.read(Evidence(tmp_path, Limits(), run=read(tmp_path, Limits(), []), world_size=8))
    assert size.parameter_bytes == 4 * 124_440_576 // 2
    assert (size.shards, size.replicas) == (shards, replicas)
    assert size.states().total == 16 * 124_440_576 // 2 // shards


@pytest.mark.parametrize(("dp_shard", "shards", "replicas"), [(-1, 4, 2), (2, 4, 2), (1, 2, 4)])
def test_ranks_along_cp_share_the_states(tmp_path, dp_shard, shards, replicas):
    section = {"name": "hsdp", "dp_replicate": 2 if dp_shard == -1 else -1, "dp_shard": dp_shard}
    config = {"strategy": section, "parallel": {"cp": 2}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    (tmp_path / "manifest.json").write_text(json.dumps(recorded_traits("hsdp")))
    size = model_size.read(Evidence(tmp_path, Limits(), run=read(tmp_path, Limits(), []), world_size=8))
    assert (size.shards, size.replicas) == (shards, replicas)


def test_the_sum_of_the_units_completes_what_nothing_else_describes():
    size = ModelSize(None, "").with_units(400, "adamw", 4)
    assert (size.parameter_bytes, size.optimizer_bytes, size.world_size, size.shards) == (400, 800, 4, 4)
    assert size.states().total == 400
    assert ModelSize(2, "").with_units(400, "", 2).states() is None
    assert paper("zero3", 64).with_units(400, "adamw", 4) == paper("zero3", 64)


@pytest.mark.parametrize(
    ("stated", "world_size"), [(8, 8), (2**32 - 1, None), (-1, None), (True, None), ("many", None)]
)
def test_a_number_of_ranks_in_a_summary_is_bounded(tmp_path, stated, world_size):
    (tmp_path / "config.yaml").write_text(json.dumps({"strategy": {"name": "ddp"}}))
    (tmp_path / "summary.json").write_text(json.dumps({"figures": {"world_size": stated}}))
    size = model_size.read(Evidence(tmp_path, Limits(), run=read(tmp_path, Limits(), [])))
    assert size.world_size == world_size
