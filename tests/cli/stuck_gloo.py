"""The gloo scenarios of docs/benchmarks.md as live jobs: `torchrun --nproc-per-node=4 stuck_gloo.py NAME`.

`TRUTH` is as in stuck.py. Jobs that gloo or an exception ends at once leave no process to look at; their dumps and logs
are what other benchmarks read.
"""

import sys
import time
from datetime import timedelta

FOREVER_S = 900
TRUTH: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "missing": ((2,), ("hang.conditional_collective", "hang.collective_mismatch")),
    "missing0": ((0,), ("hang.conditional_collective", "hang.collective_mismatch")),
    "type": ((1,), ("hang.collective_mismatch",)),
    "type0": ((0,), ("hang.collective_mismatch",)),
    "shape": ((3,), ("hang.signature_mismatch",)),
    "dtype": ((3,), ("hang.signature_mismatch",)),
    "order2pg": ((0, 1), ("hang.group_order",)),
    "p2p": ((0, 1, 2, 3), ("hang.p2p_cycle",)),
    "p2p_missing": ((0,), ("hang.p2p_cycle", "hang.conditional_collective")),
    "sub": ((1,), ("hang.conditional_collective",)),
    "exc": ((3,), ("hang.rank_raised", "hang.rank_exited")),
    "steps": ((1,), ("hang.uneven_iterations",)),
    "obj": ((2,), ("hang.collective_mismatch",)),
    "src": ((2,), ("hang.signature_mismatch",)),
    "coal": ((1,), ("hang.conditional_collective",)),
    "rs": ((1,), ("hang.conditional_collective",)),
    "straggler": ((2,), ("hang.straggler", "hang.host_stall")),
}
HEALTHY = ("op",)
"""One rank reduces with another ReduceOp: no rank waits."""


def main(name: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=FOREVER_S))
    rank = dist.get_rank()
    value = torch.ones(64)
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for _ in range(5):
        dist.all_reduce(value)
        value.fill_(1.0)
    match name:
        case "missing" | "missing0":
            if rank != TRUTH[name][0][0]:
                dist.all_reduce(value)
            dist.barrier()
        case "type" | "type0":
            if rank == TRUTH[name][0][0]:
                dist.broadcast(value, src=rank)
            else:
                dist.all_reduce(value)
            dist.barrier()
        case "shape":
            dist.all_reduce(torch.ones(128 if rank == 3 else 64))
        case "dtype":
            dist.all_reduce(value.double() if rank == 3 else value)
        case "order2pg":
            if rank < 2:
                for group in (first, second) if rank == 0 else (second, first):
                    dist.all_reduce(value, group=group)
            dist.barrier()
        case "p2p":
            dist.recv(value, src=(rank - 1) % 4)
            dist.send(value, dst=(rank + 1) % 4)
        case "p2p_missing":
            if rank == 0:
                dist.recv(value, src=1)
            dist.barrier()
        case "sub":
            skips = rank == 1
            if rank in (0, 1) and not skips:
                dist.all_reduce(value, group=first)
            dist.barrier()
        case "exc":
            if rank == 3:
                raise ValueError("bad batch")
            dist.barrier()
        case "steps":
            for _ in range(3 if rank == 1 else 4):
                dist.all_reduce(value)
            dist.barrier()
        case "obj":
            objects = [None] * 4
            if rank == 2:
                dist.broadcast_object_list(objects, src=0)
            else:
                dist.all_gather_object(objects, rank)
            dist.barrier()
        case "src":
            dist.broadcast(value, src=1 if rank == 2 else 0)
            dist.barrier()
        case "coal":
            if rank != 1:
                dist.barrier()
            dist.all_reduce_coalesced([value, value.clone()])
        case "rs":
            if rank != 1:
                dist.monitored_barrier(timeout=timedelta(seconds=FOREVER_S))
            dist.all_reduce(value)
        case "straggler":
            if rank == 2:
                time.sleep(FOREVER_S)
            dist.all_reduce(value)
        case "op":
            while True:
                dist.all_reduce(value, op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)
                value.fill_(1.0)
                time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
