"""The mesh: a rank's place along every dimension, groups that are partitions, and data-parallel ranks."""

from itertools import pairwise, product
from math import prod

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.contract.mesh import EXPERTS, NUMBERED, ORDER, Mesh, divisors

DEGREE = st.integers(1, 3)


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    degrees = {name: draw(DEGREE) for name in ORDER}
    innermost = draw(st.sampled_from(list(NUMBERED)))
    apart = innermost == "dp" and degrees["tp"] > 1  # Refused with ep: its groups are of consecutive ranks.
    eps = [1] if apart else divisors(Mesh(**degrees).divided_by_ep)
    return Mesh(**degrees, ep=draw(st.sampled_from(eps)), innermost=innermost)


@given(meshes())
@settings(deadline=None, max_examples=50)
def test_groups_of_a_dimension_are_a_partition_of_the_ranks(mesh: Mesh) -> None:
    for dimension in (*ORDER, "dp", *EXPERTS):
        groups = mesh.groups(dimension)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
        assert {len(group) for group in groups} == {mesh.size(dimension)}
        for group in groups:
            assert [mesh.coordinate(rank)[dimension] for rank in group] == list(range(mesh.size(dimension)))
        assert mesh.group(dimension, groups[-1][0]) == groups[-1]


@given(meshes())
@settings(deadline=None)
def test_neighbours_lie_a_stride_apart_and_coordinates_name_one_rank(mesh: Mesh) -> None:
    for dimension in ORDER:
        for group in mesh.groups(dimension):
            assert {b - a for a, b in pairwise(group)} <= {mesh.stride(dimension)}
    places = [tuple(mesh.coordinate(rank)[name] for name in ORDER) for rank in range(mesh.world_size)]
    assert len(set(places)) == mesh.world_size == prod(mesh.size(name) for name in ORDER)


@given(meshes())
@settings(deadline=None)
def test_one_rank_leads_for_each_part_of_the_batch(mesh: Mesh) -> None:
    leading = [mesh.index("dp", rank) for rank in range(mesh.world_size) if mesh.leads(rank)]
    assert sorted(leading) == list(range(mesh.dp_size))


@given(meshes())
@settings(deadline=None)
def test_ranks_along_cp_and_pp_lead_for_the_losses_of_their_own_tokens(mesh: Mesh) -> None:
    """Whichever rank of a pipeline has its last stage: in a V it is the first."""
    places = [mesh.coordinate(rank) for rank in range(mesh.world_size) if mesh.leads(rank, of_tokens=True)]
    degrees = {"dp": mesh.dp_size, "cp": mesh.cp, "pp": mesh.pp}
    assert sorted(tuple(place[name] for name in degrees) for place in places) == [
        *product(*map(range, degrees.values()))
    ]


def test_states_take_the_ranks_along_cp_for_data_parallel_ones() -> None:
    mesh = Mesh(dp_replicate=2, dp_shard=2, cp=2, tp=2)
    folded = mesh.folded("dp_shard")
    assert (folded, folded.groups("tp")) == (Mesh(dp_replicate=2, dp_shard=4, tp=2), mesh.groups("tp"))
    assert folded.groups("dp_shard")[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert Mesh(dp_replicate=2, cp=2).folded("dp_replicate") == Mesh(dp_replicate=4)


def test_tensor_parallel_neighbours_share_their_samples() -> None:
    mesh = Mesh(dp_replicate=2, dp_shard=2, tp=2)
    assert [mesh.index("dp", rank) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert mesh.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups("dp_shard") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("dp_replicate") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert (mesh.world_size, mesh.dp_size) == (8, 4)


def test_experts_divide_neighbouring_ranks() -> None:
    sharded = Mesh(dp_replicate=2, dp_shard=4, ep=2)
    assert sharded.groups("ep") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert sharded.groups("expert_shard") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sharded.groups("expert_replicate") == sharded.groups("dp_replicate") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    copied = Mesh(dp_replicate=4, ep=2)
    assert copied.ep_holds_copies and not sharded.ep_holds_copies
    assert (copied.groups("ep"), copied.groups("expert_replicate")) == ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    assert copied.expert_shard == 1


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [({"tp": 0}, "tp=0 is not a degree"), ({"dp_shard": 4, "ep": 3}, "ep=3 does not divide")],
)
def test_degrees_that_are_none(degrees: dict[str, int], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Mesh(**degrees)


def test_unknown_dimensions_and_ranks() -> None:
    with pytest.raises(ValueError, match="sp is not a mesh dimension"):
        Mesh().size("sp")
    with pytest.raises(ValueError, match="rank 2 is not one of the 2 ranks"):
        Mesh(dp_shard=2).coordinate(2)
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_a_mesh_reads_as_its_dimensions() -> None:
    assert str(Mesh(pp=2, dp_shard=4, tp=2)) == "pp 2 x dp_shard 4 x tp 2"
    assert str(Mesh()) == "one rank"
    assert str(Mesh(dp_shard=8, ep=2)) == "dp_shard 8, ep 2", "which has no ranks of its own"


def test_the_innermost_dimension_has_consecutive_ranks() -> None:
    degrees = {"pp": 2, "dp_shard": 2, "tp": 2}
    by_default, by_data, by_stage = (Mesh(**degrees, innermost=name) for name in ("tp", "dp", "pp"))
    assert by_default.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert by_data.groups("dp_shard") == [[0, 1], [2, 3], [4, 5], [6, 7]] and by_data.groups("tp")[0] == [0, 2]
    assert by_stage.groups("pp") == [[0, 1], [2, 3], [4, 5], [6, 7]] and by_stage.groups("tp")[0] == [0, 2]
    assert not by_default.crosses("tp", 2) and by_data.crosses("tp", 2) and not by_data.crosses("tp", 4)


@given(meshes())
@settings(deadline=None, max_examples=50)
def test_folded_ranks_stay_where_they_are(mesh: Mesh) -> None:
    folded = mesh.folded("dp_shard")
    for rank in range(mesh.world_size):
        place, now = mesh.coordinate(rank), folded.coordinate(rank)
        assert now["dp_shard"] == place["dp_shard"] * mesh.cp + place["cp"]
        assert all(now[name] == place[name] for name in ("pp", "dp_replicate", "tp"))
