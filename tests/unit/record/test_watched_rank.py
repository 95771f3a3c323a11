"""The store of a watched rank: the job's own where it is a server, else one that rank 0 opens beside it."""

from pathlib import Path

import pytest
import torch.distributed as dist

from dtk.parallel.loopback import serve_store
from dtk.record.watched_rank import watch_store


def exchange(first: dist.Store, second: dist.Store) -> None:
    first.set("asked", "by one")
    assert second.get("asked") == b"by one"


@pytest.mark.parametrize("kind", ["file", "hash"])
def test_beside_a_store_that_is_no_server_all_ranks_reach_the_one_of_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)
    job = dist.FileStore(str(tmp_path / "store"), 2) if kind == "file" else dist.HashStore()
    first, hosted = watch_store(job, "0/1", 0)
    second, _ = watch_store(job, "0/1", 1)
    assert hosted
    exchange(first, second)
    again, _ = watch_store(job, "0/2", 0)
    assert not again.check(["asked"]), "every attachment has a part of its own"


@pytest.mark.parametrize(("agent", "hosted"), [(None, True), ("True", False)])
def test_a_server_is_shared_below_a_prefix(monkeypatch: pytest.MonkeyPatch, agent: str | None, hosted: bool) -> None:
    """torchrun's lives in its agent, so no rank has to leave last."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    if agent:
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agent)
    server = serve_store()
    job = dist.PrefixStore("default_pg", server)
    first, is_hosted = watch_store(job, "0/1", 0)
    second, _ = watch_store(job, "0/1", 1)
    assert is_hosted is hosted
    exchange(first, second)
    assert not job.check(["asked"]) and not server.check(["asked"]), "the job's own keys are left alone"
