"""Memory of this rank: peak, timeline by step, CUDA allocator history and snapshot."""

import gc
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from diagnostics.contract.files import kernel_fields

STATUS = Path("/proc/self/status")
HISTORY_ENTRIES = 100_000  # As in the example of torch's documentation.


def peak_memory_bytes(device: torch.device) -> int:
    """Return the highest memory use of this rank so far.

    On CUDA: `max_memory_allocated`. On CPU: peak resident set of the process (VmHWM; without /proc, `ru_maxrss`).
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak_bytes = _status_bytes().get("VmHWM")
    if peak_bytes is None:
        import resource

        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return peak_bytes


def _status_bytes() -> dict[str, int]:
    """Return VmHWM and VmRSS of this process in bytes; empty without /proc."""
    fields = kernel_fields(STATUS)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS") if name in fields}


def held_bytes() -> int:
    """Return the bytes of all CPU tensors that Python knows, whoever made them; not those that map a file."""
    storages = {}
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # What is frozen is not listed.
    for tensor in gc.get_objects():
        if issubclass(type(tensor), torch.Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu":
            with suppress(RuntimeError, NotImplementedError):  # A wrapper of other tensors, which are counted.
                storage = tensor.untyped_storage()
                if storage.resizable():
                    storages[storage.data_ptr()] = storage.nbytes()
    if frozen:
        gc.freeze()
    return sum(storages.values())


def memory_record(device: torch.device, step: int) -> dict[str, Any]:
    """Return a line of the memory timeline at the start of a step; never synchronizes with the device."""
    host = _status_bytes()
    record = {"step": step, "time_s": time.time(), "rss_bytes": host.get("VmRSS"), "peak_rss_bytes": host.get("VmHWM")}
    if device.type != "cuda":
        return record
    stats = torch.cuda.memory_stats(device)
    return {
        **record,
        "allocated_bytes": stats.get("allocated_bytes.all.current"),
        "peak_allocated_bytes": stats.get("allocated_bytes.all.peak"),
        "reserved_bytes": stats.get("reserved_bytes.all.current"),
        "peak_reserved_bytes": stats.get("reserved_bytes.all.peak"),
        "inactive_split_bytes": stats.get("inactive_split_bytes.all.current"),
        "allocation_retries": stats.get("num_alloc_retries"),
    }


def dump_allocator(path: Path) -> None:
    """Write the CUDA allocator's segments and history for `pytorch.org/memory_viz`; OSError if it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]
