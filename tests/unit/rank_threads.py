"""Ranks as threads of one process, on torch's own group for tests: real collectives without processes to start."""

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.testing._internal.distributed.multi_threaded_pg import (
    ProcessLocalGroup,
    _install_threaded_pg,
    _uninstall_threaded_pg,
)

from diagnostics.contract.mesh import Mesh
from dtk.parallel import regions
from dtk.parallel.collectives import Axis
from dtk.parallel.context import Context

_LIMIT_S = 60.0


def on_ranks(ranks: int, work: Callable[[int], Any]) -> list[Any]:
    """Call `work(rank)` on every rank at once, in a group of all ranks; returns the results in order of rank."""
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []
    store = dist.HashStore()

    def run(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=ranks, store=store)
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)
            ProcessLocalGroup.exception_handle(error)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_LIMIT_S)
    finally:
        ProcessLocalGroup.reset()
        _uninstall_threaded_pg()
        c10d._set_thread_isolation_mode(False)
        # The open region is global, as a process has one rank: threads that leave theirs out of order leave it open.
        regions._current = regions._failed_in = None
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank waits for the others"
    return results


def whole_axis(rank: int, ranks: int, name: str = "tp") -> Axis:
    """Return the axis over all ranks, inside `on_ranks`."""
    group = dist.group.WORLD
    assert group is not None
    return Axis(name, group, rank, ranks)


def context(rank: int, mesh: Mesh) -> Context:
    """Return a rank's context on the CPU, inside `on_ranks`."""
    control = dist.group.WORLD
    assert control is not None
    return Context(rank, rank, mesh.world_size, 0, torch.device("cpu"), "threaded", control, mesh)
