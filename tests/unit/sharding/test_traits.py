"""What others read of a strategy, without torch: its meshes, its groups, and what clipping adds."""

import dataclasses
import json
from typing import Any

import pytest

from diagnostics.contract.mesh import Mesh
from dtk.sharding.registry import CONFIG_TYPES
from dtk.strategies.ddp import DDPConfig
from dtk.strategies.fsdp import FSDPConfig
from dtk.strategies.hsdp import HSDPConfig
from dtk.strategies.zero1 import Zero1Config


@pytest.mark.parametrize("name", CONFIG_TYPES)
def test_traits_are_recorded_as_json(name: str) -> None:
    record = dataclasses.asdict(CONFIG_TYPES[name].traits)
    assert json.loads(json.dumps(record))["sharded"] == list(CONFIG_TYPES[name].traits.sharded)


def test_who_gathers_and_who_deals_out() -> None:
    traits = {name: kind.traits for name, kind in CONFIG_TYPES.items()}
    assert {name for name, of in traits.items() if of.shards_parameters} == {
        "zero2",
        "zero3",
        "fsdp",
        "hsdp",
        "deepspeed_zero3",
    }
    assert [name for name, of in traits.items() if of.deals_out_parameters] == ["zero1"]


def test_ranks_along_cp_keep_states_as_data_parallel_ranks() -> None:
    mesh = Mesh(dp_replicate=2, dp_shard=2, cp=2)
    assert DDPConfig().states_mesh(mesh) == Mesh(dp_replicate=4, dp_shard=2)
    assert FSDPConfig().states_mesh(mesh) == Mesh(dp_replicate=2, dp_shard=4)


@pytest.mark.parametrize(
    ("section", "mesh", "grouped", "summed"),
    [
        (DDPConfig(), Mesh(dp_replicate=4), ("dp_replicate",), ()),
        (FSDPConfig(), Mesh(dp_shard=1), ("dp_shard",), ("dp_shard",)),
        (FSDPConfig(), Mesh(dp_shard=2, tp=2, pp=2), ("pp", "dp_shard", "tp"), ("pp", "dp_shard", "tp")),
        (HSDPConfig(), Mesh(dp_replicate=2, dp_shard=2), ("dp_replicate", "dp_shard"), ("dp_shard",)),
        (DDPConfig().in_units(), Mesh(dp_replicate=4, ep=2), ("dp_replicate", "dp_shard"), ("ep",)),
    ],
)
def test_groups_and_the_sums_of_a_norm(section: Any, mesh: Mesh, grouped: Any, summed: Any) -> None:
    assert section.grouped(mesh) == grouped
    assert section.summed(mesh) == summed
    clip = section.declare_clip(mesh)
    assert [(c.op, c.group, c.count, c.size_bytes) for c in clip] == [("all_reduce", name, 1, 4) for name in summed]


def test_a_section_has_no_error_and_contradicts_nothing_by_itself() -> None:
    for kind in CONFIG_TYPES.values():
        section: Any = kind()
        section.check()
        assert section.remembers_error is False and section.on(Mesh()) is section
    assert {*Zero1Config().traits.dimensions} == {"dp_replicate", "dp_shard", "cp", "tp", "pp", "ep"}
