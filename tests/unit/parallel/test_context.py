"""A rank's place: which part of the batch it has, whether it counts, how ranks meet and what they share."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from diagnostics.contract.mesh import Mesh
from dtk.parallel.context import join, leave, meet
from tests.unit.rank_threads import context, on_ranks


def test_ranks_that_share_samples_have_one_leader_and_tokens_of_their_own_along_cp() -> None:
    mesh = Mesh(dp_replicate=2, cp=2, tp=2)

    def work(rank: int) -> tuple[int, bool, bool, int]:
        place = context(rank, mesh)
        assert place.dp_size == 2
        return place.dp_rank, place.leads, place.leads_tokens, place.tokens_rank

    places = on_ranks(8, work)
    assert [dp_rank for dp_rank, *_ in places] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [leads for _, leads, _, _ in places] == [True, False, False, False] * 2
    assert [leads for _, _, leads, _ in places] == [True, False] * 4, "the first along tp, every one along cp"
    assert [tokens for *_, tokens in places] == list(range(8))


def test_pipeline_stages_share_the_tokens_of_their_position() -> None:
    mesh = Mesh(pp=2, dp_replicate=2)
    places = on_ranks(4, lambda rank: (context(rank, mesh).tokens_rank, context(rank, mesh).leads))
    assert places == [(0, True), (1, True), (0, False), (1, False)], "each sample is counted once"


def test_a_device_mesh_is_made_once_for_each_division() -> None:
    def work(rank: int) -> tuple[bool, list[int]]:
        place, mesh = context(rank, Mesh(dp_replicate=2, dp_shard=2)), Mesh(dp_replicate=2, dp_shard=2)
        device_mesh = place.device_mesh(mesh, ("dp_replicate", "dp_shard"))
        again = place.device_mesh(Mesh(dp_replicate=2, dp_shard=2), ("dp_replicate", "dp_shard"))
        other = place.device_mesh(Mesh(dp_shard=4), ("dp_shard",))
        assert other is not device_mesh and other.size() == 4
        return device_mesh is again, dist.get_process_group_ranks(device_mesh.get_group("dp_shard"))

    assert on_ranks(4, work) == [(True, [0, 1])] * 2 + [(True, [2, 3])] * 2


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    for name in ("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)


def test_a_rank_joins_by_its_environment(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_RANK", "3")
    place = join(HashStore(), "cpu", "gloo", 20.0)
    try:
        assert (place.rank, place.world_size, place.node_rank, place.device) == (0, 1, 3, torch.device("cpu"))
        assert place.mesh == Mesh() and dist.get_backend(place.control) == "gloo"
    finally:
        leave()
    assert not dist.is_initialized()
    leave()  # Not in a group: nothing to leave.


def test_attempts_do_not_see_each_others_keys(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first = meet(20.0)
    first.set("address", "of the first attempt")
    assert first.underlying_store.check(["attempt_0/address"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("RANK", "1")  # The store of rank 0 continues; another rank connects to it.
    monkeypatch.setenv("WORLD_SIZE", "2")
    second = meet(20.0)
    assert not second.check(["address"]) and second.underlying_store.check(["attempt_0/address"])
    assert os.environ["MASTER_ADDR"] == "127.0.0.1"
