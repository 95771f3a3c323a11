"""`simulated_group`: one rank of any world size in this process, without the others. Needs no network."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.tensor import debug

from dtk.errors import DtkError
from dtk.models import moe
from dtk.parallel.context import Context, leave
from dtk.parallel.mesh import Mesh
from dtk.simulate.mirror import Heard, MirrorGroup

_NEEDED = ("ProcessGroupGloo", "_tensor_to_object", "_get_default_group")


@contextmanager
def simulated_group(
    rank: int, world_size: int, local_size: int = 8, heard: Heard | None = None, mesh: Mesh | None = None
) -> Iterator[Context]:
    """Join a process group of `world_size` as `rank`; every collective ends at once (see `MirrorGroup`).

    Groups made inside are simulated too, whatever the moment; nothing is left behind. One at a time per process.

    Args:
        rank: which one this process stands for.
        world_size: ranks of the job.
        local_size: ranks per node: gives local_rank and node_rank.
        heard: told of every call that carries tensors, C++ ones of DDP included, as operation, group and buffers.
        mesh: how the ranks are divided; None = all are replicas.

    Raises:
        DtkError: no such rank, a process group exists already, or this torch has no gloo to stand in for.
    """
    if not 0 <= rank < world_size or local_size < 1:
        raise DtkError(f"rank {rank} of {world_size} ranks, {local_size} per node", "there is no such rank")
    if dist.is_initialized():
        what, why = "a process group exists already in this process", "a simulated rank needs the default group"
        raise DtkError(what, f"{why} for itself", "call torch.distributed.destroy_process_group() before")
    group = type("ListeningGroup", (MirrorGroup,), {"heard": staticmethod(heard) if heard else None})
    read_counts, moe.read_counts = moe.read_counts, moe.even_counts  # Who gets how much follows from values.
    with stand_in(group):
        try:
            store = torch._C._distributed_c10d.HashStore()
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
            yield Context(
                rank=rank,
                local_rank=rank % local_size,
                world_size=world_size,
                node_rank=rank // local_size,
                device=torch.device("cpu"),
                backend="gloo",
                control=dist.new_group(backend="gloo", group_desc="control"),
                mesh=mesh or Mesh(dp_replicate=world_size),
            )
        finally:
            moe.read_counts = read_counts
            leave()
            # What DTensor keeps of operations names the groups of this rank, which no other has.
            caches: Any = debug
            caches._clear_python_sharding_prop_cache()
            caches._clear_fast_path_sharding_prop_cache()


@contextmanager
def stand_in(group: type[MirrorGroup]) -> Iterator[None]:
    """Make every gloo group one of this class meanwhile; objects that never came are None.

    Raises:
        DtkError: this torch has no gloo to stand in for.
    """
    missing = [name for name in _NEEDED if not hasattr(c10d, name)]
    if missing or not hasattr(torch._C._distributed_c10d, "_create_work_from_future"):
        why = f"it lacks {', '.join(missing) or '_create_work_from_future'}"
        fix = "use the torch version that dtk is tested with"
        raise DtkError(f"torch {torch.__version__} cannot simulate ranks", why, fix)
    module: Any = c10d
    gloo, to_object = module.ProcessGroupGloo, module._tensor_to_object

    def received(tensor: Any, size: Any, source: Any) -> Any:
        return to_object(tensor, size, source) if tensor.numel() else None

    module.ProcessGroupGloo, module._tensor_to_object = group, received
    try:
        yield
    finally:
        module.ProcessGroupGloo, module._tensor_to_object = gloo, to_object
