"""Writes the simulated jobs of `trace_scenarios` in the styles that profilers and exporters have."""

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trace_simulator import BASE_NS, COMMUNICATION, COMPUTE, Simulator, rounded

__all__ = ["Simulator", "Style", "write"]

_OLD = {"kernel": "Kernel", "cpu_op": "Operator", "cuda_runtime": "Runtime", "gpu_memcpy": "Memcpy"}


@dataclass
class Style:
    """How the same events are written."""

    fractional: bool = True
    compressed: bool = True
    pretty: bool = False
    bare: bool = False
    old: bool = False
    """Category names of 2021, no arguments on collectives."""
    shuffled: bool = False
    streams: tuple[int, int] = (COMPUTE, COMMUNICATION)
    kernel_name: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    """Of collectives; `{op}` is the operation."""
    base_ns: int = BASE_NS


def write(simulator: Simulator, folder: Path, style: Style | None = None) -> list[Path]:
    """One file per rank."""
    style = style or Style()
    return [_write_rank(simulator, rank, folder, style) for rank in range(simulator.ranks)]


def _write_rank(simulator: Simulator, rank: int, folder: Path, style: Style) -> Path:
    events = [_styled(event, style) for event in simulator.events[rank]]
    if style.shuffled:
        random.Random(rank).shuffle(events)
    header = simulator.header(rank)
    if style.base_ns:
        header["baseTimeNanoseconds"] = style.base_ns
    value: Any = events if style.bare else {**header, "traceEvents": events, "traceName": "generated"}
    text = json.dumps(value, indent=2 if style.pretty else None).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank{rank}.json{'.gz' if style.compressed else ''}"
    path.write_bytes(gzip.compress(text, 1) if style.compressed else text)
    return path


def _styled(event: dict[str, Any], style: Style) -> dict[str, Any]:
    event = {**rounded(event, 3 if style.fractional else 0), "args": dict(event["args"])}
    args = event["args"]
    if event["name"].startswith("NCCL "):
        event["name"] = style.kernel_name.format(op=event["name"][5:])
    if "stream" in args:
        args["stream"] = event["tid"] = style.streams[args["stream"] == COMMUNICATION]
    if style.old:
        event["cat"] = _OLD.get(event["cat"], event["cat"])
        for key in [key for key in args if key not in ("stream", "device", "correlation", "Input Dims", "Input type")]:
            del args[key]
    return event
