"""Exported weights are those of the model, wherever its shards lie, under every name that a strict load asks for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.mesh import Mesh
from dtk.config import schema
from dtk.config.schema import PrecisionConfig
from dtk.dimensions import tp
from dtk.models.build import build_model
from dtk.models.hf import llama_name
from dtk.models.initialize import initialize_model
from dtk.sharding.registry import build_strategy
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.single import SingleConfig
from dtk.train.export import export
from tests.unit.rank_threads import context, on_ranks
from tests.unit.train.conftest import config

LLAMA = schema.LlamaConfig(
    name="probe", vocab_size=14, context_length=8, layers=1, heads=2, kv_heads=2, width=12, ffn_width=10
)


@pytest.mark.parametrize(
    ("section", "mesh"),
    [
        (FSDPConfig(), Mesh(dp_shard=2)),
        (HSDPConfig(), Mesh(dp_replicate=2, dp_shard=2)),
        (FSDPConfig(), Mesh(dp_shard=2, tp=2)),
    ],
    ids=str,
)
def test_shards_are_put_together_on_the_first_rank(section: Any, mesh: Mesh, tmp_path: Path) -> None:
    settings = config(model=LLAMA, strategy=section)
    whole = build_model(LLAMA, [])
    initialize_model(whole, 3)

    def work(rank: int) -> None:
        place = context(rank, mesh)
        with torch.device("meta"):
            model = build_model(LLAMA, [])
        strategy = build_strategy(section, place, PrecisionConfig())
        if mesh.tp > 1:
            tp.cut_model(settings, model, strategy)
        strategy.wrap(model, lambda module: initialize_model(module, 3))
        export(settings, model, RunPaths(tmp_path), place, strategy)

    on_ranks(mesh.world_size, work)
    folder = RunPaths(tmp_path).export
    tensors = load_file(folder / "model.safetensors")
    expected = {llama_name(name): value for name, value in whole.state_dict().items()}
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], value) for name, value in expected.items())
    assert json.loads((folder / "config.json").read_text())["num_key_value_heads"] == 2


def test_buffers_keep_their_type_and_small_floats_become_float32(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2, dtype=torch.bfloat16))
        place = context(rank, Mesh())
        alone = build_strategy(SingleConfig(), place, PrecisionConfig())
        own = schema.CustomModelConfig(name="own", _target_="torch.nn.Sequential")
        export(config(model=own), model, RunPaths(tmp_path), place, alone)

    on_ranks(1, work)
    tensors = load_file(RunPaths(tmp_path).export / "model.safetensors")
    assert tensors["0.num_batches_tracked"].dtype == torch.int64 and tensors["1.weight"].dtype == torch.float32
