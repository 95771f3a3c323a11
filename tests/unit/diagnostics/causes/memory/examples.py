"""Evidence of minimal jobs that waste memory in one way each."""

import json
from collections.abc import Mapping
from typing import Any

from tests.traits import recorded_traits
from tests.unit.diagnostics.causes.examples import Example

MIB = 1 << 20
_STEP_US = 1000
_GPU_BYTES = 80 * MIB


def root_unit() -> dict[str, str]:
    """Traces of two ranks whose model is wrapped only as a whole."""
    return _traces(_step(units=("",)))


def kept_units() -> dict[str, str]:
    """Traces of two ranks whose four blocks are gathered once a step."""
    return _traces(_step(units=("", "(b.0)", "(b.1)", "(b.2)", "(b.3)")))


def gathered_copies() -> dict[str, str]:
    """Traces of two ranks that all_gather a list of tensors of 64 MiB."""
    args = {"Input Dims": [[[16 * MIB]], [[16 * MIB]]], "Input type": ["TensorList", "TensorList"]}
    return _traces([_span("c10d::allgather_", 10, 5, "cpu_op", args)])


def full_state_dict() -> dict[str, str]:
    """Traces of two ranks that gather each parameter of a sharded model, and keep all of them."""
    events = _step(units=("", "(b.0)", "(b.1)"), again=True)
    for n in range(3):
        args = {
            "Input Dims": [[MIB // 2], [], []],
            "Input type": ["float", "Scalar", ""],
            "Concrete Inputs": ["", "2", ""],
        }
        name = "_c10d_functional::all_gather_into_tensor"
        events += [_span(name, 800 + 20 * n, 10, "cpu_op", args), _allocation(805 + 20 * n, 4 * MIB, n, device=0)]
    return _traces(events)


def states_too_large() -> dict[str, str]:
    """Return a dtk run with GPT-2 under DDP on two devices of 2 GB."""
    model = {"architecture": "gpt", "layers": 12, "width": 768, "vocab_size": 50257, "context_length": 1024}
    config = {"model": model, "strategy": {"name": "ddp"}, "optimizer": {"name": "adamw"}}
    return {
        "status.json": json.dumps({"state": "finished", "step": 10}),
        "manifest.json": json.dumps({"run_id": "r", "schema_version": 1, "world_size": 2, **recorded_traits("ddp")}),
        "config.yaml": json.dumps(config),
        "summary.json": json.dumps({"figures": {"world_size": 2}}),
        "telemetry/node_00000.jsonl": _telemetry(2 * 10**9),
    }


def large_activations() -> dict[str, str]:
    """Return a trace of one rank whose forward pass fills its device."""
    step = [_span("ProfilerStep#3", 0, _STEP_US), _span("forward", 10, 500)]
    events = [*step, _allocation(20, 70 * MIB, 1, device=1), _allocation(30, 4 * MIB, 2, device=1)]
    return {**_traces(events, ranks=1), "node_00000.jsonl": _telemetry(_GPU_BYTES)}


def fragmented() -> dict[str, str]:
    """Return the timeline of a rank whose allocator holds twice what tensors use and had to retry an allocation."""
    used = 512 * MIB
    return _timeline([used] * 4, peak_reserved_bytes=2 * used, reserved_bytes=2 * used, allocation_retries=3)


def rising() -> dict[str, str]:
    """Return the timeline of a rank that allocates 1 MiB more with each step."""
    return _timeline([(100 + n) * MIB for n in range(48)], peak_reserved_bytes=200 * MIB, reserved_bytes=200 * MIB)


def other_processes() -> dict[str, str]:
    """Return the log of a rank that runs out of memory on a device that other processes fill."""
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.59 GiB of which 1.10 GiB is "
        "free. Including non-PyTorch memory, this process has 8.40 GiB memory in use. Of the allocated memory 7.90 GiB "
        "is allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated."
    )
    return {"rank3.log": f"[rank3]: torch.OutOfMemoryError: {text}\n"}


def _step(units: tuple[str, ...], again: bool = False) -> list[dict[str, Any]]:
    """One training step under FSDP2; with `again` units are gathered in backward too."""
    events, now = [_span("ProfilerStep#0", 0, _STEP_US)], 10

    def mark(name: str, unit: str, gather: bool = False) -> None:
        nonlocal now
        events.append(_span(f"FSDP::{name} {unit}".strip(), now, 8))
        if gather:
            size = MIB // 2 if unit == "" else MIB
            args = {"Input Dims": [[size], [size // 2]], "Input type": ["float", "float"]}
            events.append(_span("c10d::_allgather_base_", now + 2, 2, "cpu_op", args))
        now += 10

    for unit in units:
        events.append(_span(f"FSDP::pre_forward {unit}".strip(), now, 9))
        mark("all_gather", unit, gather=True)
    for unit in reversed(units):
        mark("pre_backward", unit)
        if again and unit:
            mark("all_gather", unit, gather=True)
    for unit in units:
        mark("post_backward_reduce", unit)
    mark("root_post_backward_callback", "")
    return events


def _traces(events: list[dict[str, Any]], ranks: int = 2) -> dict[str, str]:
    def trace(rank: int) -> Mapping[str, Any]:
        return {"distributedInfo": {"rank": rank, "world_size": ranks}, "traceEvents": events}

    return {f"trace_rank{rank}.json": json.dumps(trace(rank)) for rank in range(ranks)}


def _span(name: str, ts: int, dur: int, cat: str = "user_annotation", args: object = None) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, "pid": 1, "args": args or {}}


def _allocation(ts: int, size: int, address: int, device: int) -> dict[str, Any]:
    args = {"Bytes": size, "Addr": address, "Total Allocated": size, "Device Type": device, "Device Id": device - 1}
    return {"ph": "i", "name": "[memory]", "ts": ts, "tid": 1, "args": args}


def _timeline(allocated: list[int], **more: int) -> dict[str, str]:
    lines = [
        json.dumps({"step": n, "time_s": 1e9 + n, "rss_bytes": MIB, "allocated_bytes": size,
                    "peak_allocated_bytes": size, **more})
        for n, size in enumerate(allocated, 1)
    ]  # fmt: skip
    return {"rank_00000.jsonl": "\n".join(lines) + "\n"}


def _telemetry(total_bytes: int) -> str:
    about = {"kind": "about", "schema_version": 1, "time_s": 1.0, "host": "a", "cores": 8, "every_s": 1.0, "gpu": []}
    gpu = [{"memory_used_bytes": total_bytes, "memory_total_bytes": total_bytes}]
    sample = {"kind": "sample", "time_s": 5.0, "gpu": gpu, "host": {"memory_used_bytes": 1, "memory_total_bytes": 9}}
    return f"{json.dumps(about)}\n{json.dumps(sample)}\n"


EXAMPLES = {
    "memory.activations": Example(large_activations, (0,)),
    "memory.fragmentation": Example(fragmented, (0,)),
    "memory.full_gather": Example(root_unit, (0, 1)),
    "memory.full_state_dict": Example(full_state_dict, (0, 1)),
    "memory.leak": Example(rising, (0,)),
    "memory.model_states": Example(states_too_large, (0, 1)),
    "memory.no_reshard": Example(kept_units, (0, 1)),
    "memory.non_torch": Example(other_processes, (3,), "oom"),
    "memory.replicated_gather": Example(gathered_copies, (0, 1)),
}
