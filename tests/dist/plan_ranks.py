"""On every rank: the highest use of memory in a step of real trainings, by the profiler's allocator events."""

import gc
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from diagnostics.contract.artifacts import RunPaths
from dtk.config.strict import from_plain
from dtk.parallel import collectives, marked_comm
from dtk.parallel.context import Context
from dtk.parallel.regions import Region, observe
from dtk.parallel.stop import StopRequest
from dtk.record.observers import ProfilerMarks
from dtk.record.recorder import Recorder
from dtk.simulate.step_position import REGIONS
from dtk.train.assemble import assemble
from tests.dist.ranks import placed

MEASURED = ("second step", "third step")
"""What a thread of the backend frees late is in one or the other: the lower of both is the tensors' own."""
DEEPSPEEDS = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_gather", "reduce_scatter")
RELEASED = ("all_gather_single", "reduce_scatter_single", "all_reduce", "all_to_all_single")
STEP = "step"
"""Stands for all regions of a step together."""


def alias(value: Any) -> Any:
    """Return a tensor as another object of the same storage, and anything else as it is."""
    return value.detach() if isinstance(value, torch.Tensor) else value


class Over:
    """Stands for a collective that was waited for: torch's own object would hold its tensors."""

    def wait(self, *_: Any) -> bool:
        return True

    is_completed = wait


def released(call: Any, waits: bool) -> Any:
    """Return the collective, which ends when the backend's thread no longer holds the tensors.

    What that thread frees last is not reported, and would count as held until its address is given out again.

    Args:
        call: the collective.
        waits: for an asynchronous one too; else its tensors are held until its own wait.
    """

    def run(*arguments: Any, **named: Any) -> Any:
        tensors = [item for item in (*arguments, *named.values()) if isinstance(item, torch.Tensor)]
        storages = [tensor.untyped_storage() for tensor in tensors]
        before = [torch._C._storage_Use_Count(storage._cdata) for storage in storages]
        # Aliases, so that the thread's hold counts as one more user of the storage.
        work = call(*map(alias, arguments), **{name: alias(value) for name, value in named.items()})
        over = Over() if waits and work is not None else None
        if over is not None:
            work.wait()
            work = None
        if work is None:
            end = time.monotonic() + 5
            while [
                torch._C._storage_Use_Count(storage._cdata) for storage in storages
            ] > before and time.monotonic() < end:
                time.sleep(0)
        return work or over

    return run


class Calls:
    """Communication regions of a step."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], list[int]] = {}

    def enter(self, region: Region) -> None:
        if region.op is not None and region.group != "control":
            total = self.seen.setdefault((region.op, region.group), [0, 0])
            total[0] += 1
            total[1] += region.size_bytes

    def exit(self, region: Region) -> None:
        pass


def steps(context: Context, plain: dict[str, Any], folder: str) -> dict[str, Any]:
    """Set up and run three steps of the real loop; returns peaks in bytes and the collectives of the last step."""
    config = from_plain(plain)
    context = placed(context, config)
    paths = RunPaths(Path(folder))
    calls = Calls()
    observe([ProfilerMarks(), calls])
    gc.collect()
    gc.disable()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        recorder = Recorder(config, paths, context.rank, context.local_rank, 0, context.world_size, 0, context.device)
        loop = assemble(config, context, paths, recorder, StopRequest())
        loop._step(0, *_inputs(loop, 0))
        for number, name in enumerate(MEASURED, 1):
            inputs = _inputs(loop, number)
            calls.seen.clear()
            with record_function(name):
                loop._step(number, *inputs)
    observe([])
    gc.enable()
    if dist.is_initialized():
        dist.barrier()
    by_region = peaks(profiler.profiler.kineto_results.experimental_event_tree())
    tensors, everything = by_region.pop(STEP)
    return {
        "tensors": tensors,
        "everything": everything,
        "regions": {region: highest for region, (highest, _) in by_region.items()},
        "calls": {k: tuple(v) for k, v in calls.seen.items()},
    }


def _inputs(loop: Any, step: int) -> Any:
    from dtk.parallel.control import agree

    return loop._batches(step), agree(loop.context, False, 0)


def peaks(roots: list[Any]) -> dict[str, tuple[int, int]]:
    """Highest use within the measured steps, whole and by region: tensors, and with what is allocated in collectives.

    Frees that happen on a thread of the backend are not reported: an address that is given out again was freed.
    """
    result, spans = allocations(roots)
    steps = [span for name, *span in spans if name in MEASURED]
    most: dict[tuple[int, str], tuple[int, int]] = {}
    live: dict[int, tuple[int, bool]] = {}
    tensors = everything = 0
    for time_ns, address, size, inside in sorted(result, key=lambda value: value[0]):
        lost, was_inside = live.pop(address, (0, False))
        everything -= lost
        tensors -= 0 if was_inside else lost
        if size > 0:
            live[address] = size, inside
            everything += size
            tensors += 0 if inside else size
        step = next((i for i, (begin, end) in enumerate(steps) if begin <= time_ns <= end), None)
        if step is None:
            continue
        within = [name for name, begin, end in spans if name in REGIONS and begin <= time_ns <= end]
        for name in (STEP, *within):
            first, other = most.get((step, name), (0, 0))
            most[step, name] = max(first, tensors), max(other, everything)
    lower: dict[str, tuple[int, int]] = {}
    for (_, name), (first, other) in most.items():
        before = lower.get(name, (first, other))
        lower[name] = min(before[0], first), min(before[1], other)
    return lower


def allocations(roots: list[Any]) -> tuple[list[tuple[int, int, int, bool]], list[tuple[str, int, int]]]:
    """Time, address, size and whether in a collective; and the spans of measured steps and of their regions."""
    result: list[tuple[int, int, int, bool]] = []
    spans: list[tuple[str, int, int]] = []
    stack = [(root, False) for root in roots]
    while stack:
        event, inside = stack.pop()
        if event.name in MEASURED or event.name in REGIONS:
            spans.append((event.name, event.start_time_ns, event.end_time_ns))
        inside = inside or event.name.startswith(("c10d::", "gloo:"))
        if event.tag.name == "Allocation":
            fields = event.extra_fields
            result.append((event.start_time_ns, fields.ptr, fields.alloc_size, inside))
        stack += [(child, inside) for child in event.children]
    return result, spans


def measure_all(context: Context, cases: dict[str, dict[str, Any]], folder: str) -> dict[str, Any]:
    """`cases`: name -> resolved configuration."""
    # Each of the modules that hold one, FSDP2's calls included, which look it up in `dist`.
    for module in (collectives, marked_comm, dist):
        for name in (*RELEASED, *(DEEPSPEEDS if module is dist else ())):  # `collectives` has functions of such names.
            if hasattr(module, name):
                setattr(module, name, released(getattr(module, name), waits=name in DEEPSPEEDS))
    return {name: steps(context, plain, f"{folder}/{name}") for name, plain in cases.items()}
