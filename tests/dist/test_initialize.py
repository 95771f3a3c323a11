"""Initial and pretrained values under sharding: every rank fills its own shard, the whole is as on one process.

Each test starts this file once per rank (gloo, file rendezvous); the ranks assert, the test reads their exit codes.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import dtk
from dtk.config.schema import GPTConfig
from dtk.models.declared import Initial
from dtk.models.gpt import GPT
from dtk.models.hf import export_weights, load_gpt2
from dtk.models.initialize import BLOCK, initialize, initialize_model

# Rows that 4 ranks cannot share evenly (30, 40001), fewer rows than ranks (3), more than one random block.
CONFIG = GPTConfig(name="odd", vocab_size=40001, context_length=3, layers=2, heads=5, width=30)
MESHES = {"fsdp2": (2,), "fsdp4": (4,), "hsdp": (2, 2)}
NORMAL = Initial(kind="normal", std=0.02)
MIB = 2**20


def start(case: str, world_size: int, folder: Path) -> None:
    """Run `case` on `world_size` ranks; fail with the output of every rank that failed."""
    root = Path(dtk.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, case, str(rank), str(world_size), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        errors = [process.communicate(timeout=100)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    failed = {rank: errors[rank][-3000:] for rank, process in enumerate(ranks) if process.returncode}
    assert not failed, "\n".join(f"rank {rank}:\n{text}" for rank, text in failed.items())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", MESHES)
def test_shards_together_are_the_values_of_one_process(case: str, tmp_path: Path) -> None:
    start(case, 2 if case == "fsdp2" else 4, tmp_path)


@pytest.mark.timeout(120)
def test_a_rank_never_holds_more_than_its_shard_and_a_block(tmp_path: Path) -> None:
    start("memory", 4, tmp_path)


@pytest.mark.timeout(120)
def test_sharding_on_another_dimension_is_refused(tmp_path: Path) -> None:
    start("columns", 2, tmp_path)


def materialised(shape: tuple[int, ...] | None = None) -> GPT:
    """The model with memory full of NaN, plain or sharded over a mesh of this shape."""
    with torch.device("meta"):
        model = GPT(CONFIG)
    if shape is not None:
        names = ("dp_shard",) if len(shape) == 1 else ("dp_replicate", "dp_shard")
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    return model


def check_equal(sharded: nn.Module, plain: nn.Module) -> None:
    for (name, part), whole in zip(sharded.named_parameters(), plain.parameters(), strict=True):
        assert isinstance(part, DTensor)
        assert torch.equal(part.full_tensor(), whole), name


def check_values(shape: tuple[int, ...], folder: Path) -> None:
    plain, sharded = materialised(), materialised(shape)
    assert plain.token_embedding.weight.numel() > BLOCK
    initialize_model(plain, seed=11)
    initialize_model(sharded, seed=11)
    check_equal(sharded, plain)

    # Gathered one by one into a Hugging Face folder, and from there back into other shards.
    shapes = {name: p.shape for name, p in sharded.named_parameters()}
    gathered = ((name, p.full_tensor()) for name, p in sharded.named_parameters())
    if dist.get_rank() == 0:
        export_weights(CONFIG, shapes, gathered, folder)
    else:
        for _ in gathered:
            pass
    dist.barrier()
    again = materialised(shape)
    load_gpt2(again, folder)
    check_equal(again, plain)


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check_memory() -> None:
    """A parameter of 512 MiB over 4 ranks: each may grow by its 128 MiB, a few blocks of 4 MiB and some slack."""
    mesh = init_device_mesh("cpu", (4,))
    initialize(torch.empty(8), "warm", NORMAL, 1)
    before = peak_rss_bytes()
    local = torch.empty(32 * 1024, 1024)
    parameter = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
    assert parameter.numel() * 4 == 512 * MIB
    initialize(parameter, "large", NORMAL, 1)
    grown = peak_rss_bytes() - before
    assert grown < 256 * MIB, f"peak memory grew by {grown / MIB:.0f} MiB"
    assert abs(local.std().item() / 0.02 - 1) < 1e-2


def check_columns() -> None:
    mesh = init_device_mesh("cpu", (2,))
    with pytest.raises(ValueError, match="dim 0"):
        initialize(distribute_tensor(torch.zeros(4, 4), mesh, [Shard(1)]), "a", NORMAL, 1)
    replicated = distribute_tensor(torch.zeros(4, 4), mesh, [Replicate()])
    plain = torch.zeros(4, 4)
    for tensor in (replicated, plain):
        initialize(tensor, "a", NORMAL, 1)
    assert torch.equal(replicated.to_local(), plain)


def main(case: str, rank: int, world_size: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    if case == "memory":
        check_memory()
    elif case == "columns":
        check_columns()
    else:
        check_values(MESHES[case], folder / "export")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
