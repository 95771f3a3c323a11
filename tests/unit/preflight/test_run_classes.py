"""Which rank stands for which, and what the others get from it."""

import pytest

from diagnostics.contract.findings import Group
from diagnostics.contract.mesh import Mesh
from dtk.preflight.calls import End, Record
from dtk.preflight.match import match
from dtk.preflight.run import replaceable, representatives, spread
from tests.unit.preflight.programs import blocking, entry, record


def test_first_and_last_and_named_ranks_stand_for_themselves() -> None:
    result = representatives(4096, 8, named=(77,))
    assert result[0] == 0 and result[4095] == 4095 and result[77] == 77
    assert len(result) == 4096
    assert set(result.values()) == {0, 1, 7, 8, 77, 4095}


def test_each_place_of_a_mesh_has_its_class() -> None:
    result = representatives(64, 8, mesh=Mesh(dp_shard=4, tp=16))
    assert result[16] != result[17] != result[31]
    assert result[16] == result[32]  # both first in dp_shard, in the middle of dp_replicate


def hybrid(world_size: int, shard: int) -> tuple[tuple[tuple[int, ...], str], ...]:
    rows = [tuple(range(start, start + shard)) for start in range(0, world_size, shard)]
    columns = [tuple(range(start, world_size, shard)) for start in range(shard)]
    return tuple([(ranks, "dp_replicate") for ranks in columns] + [(ranks, "dp_shard") for ranks in rows])


def simulated(rank: int, result: tuple[tuple[tuple[int, ...], str], ...], world_size: int) -> Record:
    mine = [Group(str(index + 1), ranks, desc) for index, (ranks, desc) in enumerate(result) if rank in ranks]
    groups = [Group("0", tuple(range(world_size))), *mine]
    steps = blocking(*(("call", index, "all_reduce", 4) for index in range(len(groups))))
    item = record(rank, groups, steps)
    return Record(rank, item.program, item.groups, item.end, new_groups=result)


def test_others_get_their_own_groups() -> None:
    result = hybrid(16, 4)
    stands_for = representatives(16, 8, mesh=Mesh(dp_shard=4, tp=4))
    records = {rank: simulated(rank, result, 16) for rank in set(stands_for.values())}
    assert replaceable(records.values())
    value = spread(records, stands_for)
    assert list(value) == list(range(16))
    for rank, item in value.items():
        assert all(rank in group.ranks for group in item.groups)
        assert item.groups == simulated(rank, result, 16).groups
    assert match(value.values()).ends


def test_ranks_that_send_stand_for_nobody() -> None:
    item = record(0, [Group("0", (0, 1))], [("send", 0, 1)])
    assert not replaceable([item])
    assert entry(0, "send", p2p="send").p2p == "send"


@pytest.mark.parametrize("end", [End("raised"), End("exited")])
def test_an_end_is_shared_too(end: End) -> None:
    result = hybrid(8, 4)
    stands_for = representatives(8, 8)
    records = {rank: simulated(rank, result, 8) for rank in set(stands_for.values())}
    records[1] = Record(1, records[1].program, records[1].groups, end, new_groups=result)
    assert spread(records, stands_for)[2].end == end


def two_stages(rank: int, world_size: int) -> Record:
    """A stage of the pipeline of ranks n and n + world_size / 2, which sends to its place in the group."""
    pipelines = tuple(((n, n + world_size // 2), "mesh_pp") for n in range(world_size // 2))
    place = rank // (world_size // 2)
    groups = [Group("0", tuple(range(world_size))), Group(str(rank % (world_size // 2) + 1), *pipelines[rank % 4])]
    own = Group("8f2c", pipelines[rank % 4][0], "pp_shared")
    message = ("send", 1, 1) if place == 0 else ("recv", 1, 0)
    item = record(rank, [*groups, own], [message, *blocking(("call", 2, "all_reduce", 4))])
    return Record(rank, item.program, item.groups, item.end, new_groups=pipelines)


def test_a_stage_stands_for_the_same_stage_of_other_pipelines() -> None:
    stands_for = representatives(8, 8, mesh=Mesh(pp=2, dp_shard=4), apart=("pp",))
    records = {rank: two_stages(rank, 8) for rank in set(stands_for.values())}
    assert not replaceable(records.values()) and replaceable(records.values(), apart=True)
    assert len(records) < 8
    result = spread(records, stands_for)
    assert {rank: value.groups[1].ranks for rank, value in result.items()} == {n: (n % 4, n % 4 + 4) for n in range(8)}
    assert all(item.groups[2].ranks == item.groups[1].ranks for item in result.values())
    assert match(result.values()).ends
