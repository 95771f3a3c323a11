"""One rank that tries a tiny collective of each kind. Run by `dtk.doctor.rank` in a process of its own.

Checks every result. One JSON line before and after each, so that the place of a rank that does not come back is known.
"""

import datetime
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from dtk.orphan import tell
from dtk.parallel.context import meet
from dtk.parallel.verified import KINDS, make, wrong_elements

SHARE_BYTES = 1024
"""Of each rank, where the data is divided over them."""
REPEATS = 3


def try_all(backend: str, timeout_s: float) -> None:
    """Meet the others, try everything, leave."""
    device, rank, world_size = torch.device("cpu"), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    tell(begin="meeting")
    dist.init_process_group(
        backend,
        store=PrefixStore(f"dtk/doctor/{backend}", meet(timeout_s)),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout_s),
        device_id=device if backend == "nccl" else None,
    )
    tell(met=world_size)
    for name in KINDS:
        if name != "send_recv" or world_size > 1:
            tell(begin=name)
            tell(done=name, **_tried(name, device))
    tell(begin="leaving")
    dist.barrier()  # A rank that serves the store must not go before the others have come.


def _tried(name: str, device: torch.device) -> dict[str, Any]:
    """Whether a collective gives what it must, and the time of the fastest repeat in ms."""
    buffers = make(name, SHARE_BYTES * dist.get_world_size(), torch.float32, device)
    wrong = sum(wrong_elements(name, buffers) for _ in range(REPEATS))
    best_s = float("inf")
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        buffers.call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - began_s)
    return {"right": not wrong, "ms": round(best_s * 1e3, 3)}
