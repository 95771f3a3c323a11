"""One rank that tries a tiny collective of each kind: `python -m dtk.doctor.collective_ranks BACKEND TIMEOUT_S`.
It writes a JSON line before and after each, and before it imports torch, so that the place where it stops is known.
"""

import datetime
import os
import sys

from dtk.rank.child import run_child, send_record

if __name__ == "__main__":
    send_record(begin="importing torch")

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from dtk.parallel.context import meet
from dtk.parallel.verified import KINDS, make, timed_s, wrong_elements

SHARE_BYTES = 1024  # Chosen: bytes per rank where data is divided: enough to check values; speed is not measured.
REPEATS = 3  # Chosen: the best of three counts, as the first call sets up the connections.


def try_all(backend: str, timeout_s: float) -> None:
    """Join the other ranks, try every collective, and leave."""
    device, rank, world_size = torch.device("cpu"), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    send_record(begin="meeting")
    dist.init_process_group(
        backend,
        store=PrefixStore(f"dtk/doctor/{backend}", meet(timeout_s)),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout_s),
        device_id=device if backend == "nccl" else None,
    )
    send_record(met=world_size)
    for name in KINDS:
        if name != "send_recv" or world_size > 1:
            send_record(begin=name)
            buffers = make(name, SHARE_BYTES * world_size, torch.float32, device)
            wrong = sum(wrong_elements(name, buffers) for _ in range(REPEATS))
            best_s = min(timed_s(buffers.call, device) for _ in range(REPEATS))
            send_record(done=name, right=not wrong, ms=round(best_s * 1e3, 3))
    send_record(begin="leaving")
    dist.barrier()  # A rank that serves the store must not exit before the others have connected.


if __name__ == "__main__":
    run_child(lambda: try_all(sys.argv[1], float(sys.argv[2])))
