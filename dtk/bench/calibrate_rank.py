"""One rank of a calibration: times matrix products, copies and all_reduce. Usage: calibrate_rank DEVICE SECONDS. Rank 0
writes JSON lines {"at"} as it proceeds; every rank writes {"figures"} at the end.
"""

import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist

from dtk.parallel.context import join, leave, meet
from dtk.parallel.verified import timed_s
from dtk.rank.child import run_child, send_record

SIZES_BYTES = tuple(4**i for i in range(5, 13))  # Sizes of the all_reduce: 1 KiB to 16 MiB.
WIDTH = {"cpu": 1024, "cuda": 8192}  # Width of the square matrix: large enough to run at full speed.
ROWS = {"cpu": 512, "cuda": 8192}  # Chosen: one product takes milliseconds on either.
COPIED_BYTES = {"cpu": 2**26, "cuda": 2**30}  # Far more than caches hold.
MATMUL, COPY, ALL_REDUCE = 0.45, 0.1, 0.45  # Chosen: fractions of the time; a copy has one size, the others many.
START_S = TIMEOUT_S = 60.0  # Chosen: for the other ranks to import torch, or to answer in a collective.


def _median_s(device: str, budget_s: float, run: Callable[[], object]) -> float:
    """Return the median of as many runs as the budget allows, at least one, after a warm-up run."""
    end_s = time.perf_counter() + budget_s
    timed_s(run, device)
    times = [timed_s(run, device)]
    while time.perf_counter() < end_s:
        times.append(timed_s(run, device))
    return statistics.median(times)


def matmul_flops(device: str, name: str, dtype: torch.dtype, budget_s: float) -> float:
    """Return FLOP/s of rows times a square matrix; slow types get fewer rows."""
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    width, rows = WIDTH[device], ROWS[device]
    matrix = torch.ones(width, width, dtype=dtype, device=device)
    probe = torch.ones(8, width, dtype=dtype, device=device)
    probe_s = min(timed_s(lambda: probe @ matrix, device) for _ in range(2))
    while rows > 8 and probe_s * rows / 8 > budget_s / 4:
        rows //= 2
    operand = torch.ones(rows, width, dtype=dtype, device=device)
    return 2 * rows * width * width / _median_s(device, budget_s, lambda: operand @ matrix)


def copy_bytes_per_s(device: str, budget_s: float) -> float:
    """Return bytes read and written per second by a copy on the device."""
    source = torch.ones(COPIED_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _median_s(device, budget_s, lambda: target.copy_(source))


def all_reduce_s(device: str, budget_s: float) -> dict[str, list[float]]:
    """Return size -> seconds of single calls; all ranks make the same number of calls."""
    times: dict[str, list[float]] = {}
    for size in SIZES_BYTES:
        tensor = torch.ones(size // 4, device=device)
        for _ in range(2):
            dist.all_reduce(tensor)
        dist.barrier()
        once_s = torch.tensor([timed_s(partial(dist.all_reduce, tensor), device)], device=device)
        dist.all_reduce(once_s, op=dist.ReduceOp.MAX)
        rounds = max(3, min(200, int(budget_s / len(SIZES_BYTES) / max(float(once_s), 1e-6))))
        times[str(size)] = [timed_s(partial(dist.all_reduce, tensor), device) for _ in range(rounds)]
    return times


def main() -> None:
    """Measure and write the figures; rank 0 also reports progress."""
    device, seconds = sys.argv[1], float(sys.argv[2])
    on_cuda = device == "cuda"
    context = join(meet(START_S), device, "nccl" if on_cuda else "gloo", TIMEOUT_S)
    ranks = context.world_size

    def show(text: str) -> None:
        if context.rank == 0:
            send_record(at=text)

    figures: dict[str, Any] = {
        "host": platform.node(),
        "cpu": platform.processor() or platform.machine(),
        "device": torch.cuda.get_device_name() if on_cuda else None,
        "devices": torch.cuda.device_count() if on_cuda else ranks,
        "threads": torch.get_num_threads(),
        "memory_bytes": torch.cuda.mem_get_info()[0] if on_cuda else psutil.virtual_memory().available // ranks,
        "matmul_flops": {},
    }
    tf32 = {"tf32": torch.float32} if on_cuda else {}
    dtypes = {"float32": torch.float32, **tf32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    for name, dtype in dtypes.items():
        show(f"matrix products in {name}")
        dist.barrier()
        figures["matmul_flops"][name] = matmul_flops(device, name, dtype, MATMUL * seconds / len(dtypes))
    show("copies")
    dist.barrier()
    figures["copy_bytes_per_s"] = copy_bytes_per_s(device, COPY * seconds)
    if ranks > 1:
        show("all_reduce between the ranks")
        figures["all_reduce_s"] = all_reduce_s(device, ALL_REDUCE * seconds)
    leave()
    send_record(figures=figures)


if __name__ == "__main__":
    run_child(main)
