"""Plain torchrun jobs that hang: `torchrun --nproc-per-node=4 stuck.py NAME`. Each fault is one that people write.

`TRUTH` says for each whose fault it is and which causes fit. A job hangs for longer than any test lasts.
"""

import fcntl
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

FOREVER_S = 900
TRUTH: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "rank0_barrier": ((0,), ("hang.conditional_collective", "hang.collective_mismatch")),
    "early_break": ((1,), ("hang.uneven_iterations",)),
    "fewer_batches": ((3,), ("hang.uneven_iterations",)),
    "swallowed": ((2,), ("hang.conditional_collective",)),
    "other_collective": ((3,), ("hang.collective_mismatch",)),
    "rank0_evaluates": ((0,), ("hang.conditional_collective", "hang.uneven_iterations")),
    "recv_alone": ((0,), ("hang.p2p_cycle", "hang.conditional_collective")),
    "recv_ring": ((0, 1, 2, 3), ("hang.p2p_cycle",)),
    "sleeps": ((1,), ("hang.host_stall",)),
    "polls_file": ((2,), ("hang.host_stall",)),
    "stopped": ((2,), ("hang.host_stall",)),
    "loader": ((0,), ("hang.host_stall",)),
    "file_lock": ((1,), ("hang.host_stall",)),
    "asks": ((0,), ("hang.host_stall",)),
    "queue": ((3,), ("hang.host_stall",)),
    "child": ((0,), ("hang.host_stall",)),
    "saves": ((0,), ("hang.host_stall",)),
    "computes": ((2,), ("hang.host_stall",)),
    "exits": ((1,), ("hang.rank_exited",)),
    "thread": ((1,), ("hang.host_stall",)),
    "two_ranks": ((0,), ("hang.conditional_collective", "hang.collective_mismatch")),
}
WORLD = {"two_ranks": 2}
"""Ranks of the job where they are not four."""
HEALTHY = ("trains", "balanced")
"""Jobs without a fault."""


def main(name: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    value = torch.ones(64)

    def step() -> None:
        dist.all_reduce(value)
        value.fill_(1.0)

    def evaluate() -> None:
        parts = [torch.zeros(64) for _ in range(world)]
        dist.all_gather(parts, value)

    match name:
        case "rank0_barrier" | "two_ranks":
            for index in range(8):
                step()
                if rank == 0 and index == 4:
                    dist.barrier()
        case "early_break":
            for index in range(8):
                if rank == 1 and index == 5:
                    break
                step()
            dist.barrier()
        case "fewer_batches":
            for _batch, _index in zip(range(6 if rank == 3 else 8), range(100), strict=False):
                step()
            evaluate()
        case "swallowed":
            for index in range(8):
                try:
                    if rank == 2 and index == 3:
                        raise ValueError("bad batch")
                    step()
                except ValueError:
                    continue
            dist.barrier()
        case "other_collective":
            for index in range(8):
                step()
                if rank == 3 and index == 4:
                    dist.broadcast(value, src=3)
                else:
                    dist.all_reduce(value)
        case "rank0_evaluates":
            model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
            ddp = torch.nn.parallel.DistributedDataParallel(model)
            for index in range(8):
                ddp(torch.ones(4, 64)).sum().backward()
                if rank == 0 and index == 4:
                    ddp(torch.ones(4, 64))
        case "recv_alone":
            step()
            if rank == 0:
                dist.recv(value, src=1)
            dist.barrier()
        case "recv_ring":
            step()
            dist.recv(value, src=(rank - 1) % world)
            dist.send(value, dst=(rank + 1) % world)
        case "exits":
            step()
            if rank == 1:
                os._exit(0)
            if rank == 0:
                time.sleep(FOREVER_S)  # Gloo ends who waits for a rank that is gone; a store or NCCL does not.
            dist.distributed_c10d._get_default_store().get("never")
        case "trains" | "balanced":
            work = torch.ones(300, 300)
            for _ in range(100_000):
                for _ in range(1 if name == "balanced" else 1 + 6 * (rank == 1)):
                    work = (work @ work).clamp(0, 1)
                step()
        case _:
            for index in range(8):
                if index == 5 and rank in TRUTH[name][0]:
                    _hold(name, rank)
                step()
            dist.barrier()


def _hold(name: str, rank: int) -> None:
    """Keep one rank from its next collective."""
    import torch

    match name:
        case "sleeps":
            time.sleep(FOREVER_S)
        case "polls_file":
            while not Path("/nonexistent/ready").exists():
                time.sleep(0.2)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "loader":
            next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1)))
        case "file_lock":
            path = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).with_name("lock")
            code = f"import fcntl, time; f = open({str(path)!r}, 'w'); fcntl.flock(f, 2); print(flush=True); "
            code += f"time.sleep({FOREVER_S})"
            subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout.readline()  # type: ignore[union-attr]
            with path.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
        case "asks":
            reading, _ = os.pipe()
            os.dup2(reading, 0)
            input("continue? ")
        case "queue":
            queue.Queue().get()
        case "child":
            subprocess.run(["sleep", str(FOREVER_S)], check=True)
        case "saves":
            pipe = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).with_name("checkpoint.pt")
            os.mkfifo(pipe)
            torch.save({"weights": torch.ones(8)}, pipe)
        case "computes":
            work = torch.ones(400, 400)
            while True:
                work = (work @ work).clamp(0, 1)
        case "thread":
            thread = threading.Thread(target=time.sleep, args=(FOREVER_S,))
            thread.start()
            thread.join()


class Slow:
    """A dataset that never gives its first sample."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        time.sleep(FOREVER_S)
        return index


if __name__ == "__main__":
    main(sys.argv[1])
