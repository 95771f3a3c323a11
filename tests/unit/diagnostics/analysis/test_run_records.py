import json
from dataclasses import asdict

import pytest

from diagnostics.analysis.run_records import group_name, joint_group, layout, named, recorded_layout
from diagnostics.contract.findings import Finding, Group, Text
from diagnostics.contract.mesh import NUMBERED, ORDER, Mesh
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, RunEvidence


def evidence(tmp_path, mesh, world_size):
    run = RunEvidence(tmp_path, None, {}, {"mesh": mesh}, {}, {}, {}, {})
    return Evidence(root=tmp_path, limits=Limits(), run=run, world_size=world_size)


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ((14, 15), "tp group 3 of stage 1"),
        ((0, 1), "tp group 0 of stage 0"),
        ((9, 11, 13, 15), "dp_shard group 1 of stage 1"),
        ((0, 8), "pp group 0"),
        ((7, 15), "pp group 7"),
        (tuple(range(8)), "dp_shard x tp group of stage 0"),
        ((0, 2, 1, 3), ""),
        ((0, 9), ""),
        (tuple(range(16)), ""),
        ((3,), ""),
        ((0, 16), ""),
    ],
)
def test_a_group_is_called_by_its_dimension_and_stage(ranks, name):
    assert group_name(Mesh(pp=2, dp_shard=4, tp=2), ranks) == name


def test_numbers_are_left_out_where_there_is_one_group():
    assert group_name(Mesh(tp=2), (0, 1)) == "tp group"
    assert group_name(Mesh(dp_replicate=2, dp_shard=2), (0, 1, 2, 3)) == "dp group"


@pytest.mark.parametrize(
    ("mesh", "ranks", "of", "name"),
    [
        ({"dp_shard": 4}, (2, 3), "", "ep group 1"),
        ({"dp_shard": 4}, (1, 2), "", ""),
        ({"dp_shard": 2, "pp": 2}, (2, 3), "ep", "ep group of stage 1"),
        ({"dp_shard": 2, "pp": 2}, (2, 3), "", "dp_shard group of stage 1"),
        ({"dp_shard": 2, "tp": 2, "pp": 2}, (6, 7), "ep", "ep group 1 of stage 1"),
        ({"dp_shard": 2, "tp": 2, "pp": 2}, (6, 7), "", "tp group 1 of stage 1"),
        ({"dp_shard": 2, "tp": 2, "pp": 2}, (5, 7), "ep", ""),
    ],
)
def test_a_group_of_experts_is_told_from_one_of_the_same_ranks(mesh, ranks, of, name):
    assert group_name(Mesh(**mesh, ep=2), ranks, of) == name


@pytest.mark.parametrize("innermost", NUMBERED)
def test_the_mesh_of_a_run_is_the_one_in_its_manifest(innermost):
    mesh = Mesh(pp=2, dp_shard=2, tp=2, ep=2, innermost=innermost)
    recorded = json.loads(json.dumps({**asdict(mesh), "order": mesh.order}))
    assert recorded_layout({"mesh": recorded}, 8) == mesh
    assert recorded_layout({"mesh": {**recorded, "order": recorded["order"][::-1]}}, 8) is None, "of another dtk"


def test_several_groups_are_counted():
    assert joint_group(Mesh(pp=2, tp=2), "tp", (0, 3)) == Group("tp", (0, 1, 2, 3), "2 tp groups")


@pytest.mark.parametrize(
    "mesh",
    [
        None,
        3,
        {},
        {"pp": 2},
        {**dict.fromkeys(ORDER, 1), "tp": "2"},
        dict.fromkeys(ORDER, 0),
        {**dict.fromkeys(ORDER, 1), "order": [3], "tp": None},
    ],
)
def test_a_damaged_or_missing_mesh_is_none(tmp_path, mesh):
    assert layout(evidence(tmp_path, mesh, 1)) is None
    assert layout(Evidence(root=tmp_path, limits=Limits())) is None


def test_a_damaged_degree_of_experts_is_left_out(tmp_path):
    mesh = {**dict.fromkeys(ORDER, 1), "dp_shard": 4, "ep": 3}
    assert layout(evidence(tmp_path, mesh, 4)).ep == 1


def test_findings_get_the_name_of_their_group(tmp_path):
    finding = Finding(cause="hang.network", status="confirmed", facts=Text("x"), group=Group("17", (2, 3)))
    mesh = {**dict.fromkeys(ORDER, 1), "pp": 2, "tp": 2}
    (item,) = named(evidence(tmp_path, mesh, 4), [finding])
    assert item.group == Group("17", (2, 3), "tp group of stage 1")
    assert named(evidence(tmp_path, {**mesh, "tp": 1, "pp": 1, "dp_shard": 4}, 4), [finding]) == [finding]
