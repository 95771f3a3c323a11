"""On every rank: the highest use of memory in a step of real trainings, by the profiler's allocator events."""

import gc
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from diagnostics.artifacts import RunPaths
from dtk.config.strict import from_plain
from dtk.parallel.context import Context
from dtk.parallel.stop import StopRequest
from dtk.record.observers import ProfilerMarks
from dtk.record.recorder import Recorder
from dtk.record.regions import Region, observe
from dtk.train.assemble import assemble

MEASURED = ("second step", "third step")
"""What a thread of the backend frees late is in one or the other: the lower of both is the tensors' own."""


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
    tensors, everything = peaks(profiler.profiler.kineto_results.experimental_event_tree())
    return {"tensors": tensors, "everything": everything, "calls": {k: tuple(v) for k, v in calls.seen.items()}}


def _inputs(loop: Any, step: int) -> Any:
    from dtk.parallel.control import agree

    return loop._batches(step), agree(loop.context, False, 0)


def peaks(roots: list[Any]) -> tuple[int, int]:
    """Highest use within the measured steps: of tensors, and with what the backend allocates inside its collectives.

    Frees that happen on a thread of the backend are not reported: an address that is given out again was freed.
    """
    found: list[tuple[int, int, int, bool]] = []
    spans: list[tuple[int, int]] = []
    stack = [(root, False) for root in roots]
    while stack:
        event, inside = stack.pop()
        if event.name in MEASURED:
            spans.append((event.start_time_ns, event.end_time_ns))
        inside = inside or event.name.startswith(("c10d::", "gloo:"))
        if event.tag.name == "Allocation":
            fields = event.extra_fields
            found.append((event.start_time_ns, fields.ptr, fields.alloc_size, inside))
        stack += [(child, inside) for child in event.children]
    live: dict[int, tuple[int, bool]] = {}
    tensors = everything = 0
    most = dict.fromkeys(spans, (0, 0))
    for time_ns, address, size, inside in sorted(found, key=lambda one: one[0]):
        gone, was_inside = live.pop(address, (0, False))
        everything -= gone
        tensors -= 0 if was_inside else gone
        if size > 0:
            live[address] = size, inside
            everything += size
            tensors += 0 if inside else size
        for span, (one, other) in most.items():
            if span[0] <= time_ns <= span[1]:
                most[span] = max(one, tensors), max(other, everything)
    return min(one for one, _ in most.values()), max(other for _, other in most.values())


def measure_all(context: Context, cases: dict[str, dict[str, Any]], folder: str) -> dict[str, Any]:
    """`cases`: name -> resolved configuration."""
    return {name: steps(context, plain, f"{folder}/{name}") for name, plain in cases.items()}
