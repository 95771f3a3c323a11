"""Profiles of ranks and their calls, made by hand, and those of simulated traces."""

from pathlib import Path
from typing import Any

from diagnostics.analysis.step_profile.breakdown import Breakdown
from diagnostics.analysis.step_profile.gaps import Gap, Reason
from diagnostics.analysis.step_profile.profile import CallProfile, RankProfile, StepProfile, profile
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.trace import TraceFile
from diagnostics.evidence.trace.model import GroupInfo, Message, Trace
from tests.trace_generator import Simulator, Style, write

MIB = 1 << 20


def call(op: str = "all_reduce", start: int = 0, length: int = 100, **more: Any) -> CallProfile:
    """A collective of float32 elements; `size` in bytes, `idle` = (reason, ns) before it."""
    size, group = more.pop("size", 4 * MIB), more.pop("group", "dp")
    message = Message(op, size // 4, "float", group, more.pop("group_size", 0), more.pop("seq", None))
    reason: tuple[Reason, int] | None = more.pop("idle", None)
    gap = Gap(start - reason[1], start, reason[0], "what the host did") if reason else None
    facts: dict[str, Any] = {
        "step": 0, "exposed": length, "overlapped": 0, "issued": start, "phase": "backward", "micro": 0,
        "on_compute": False, "waited": False, "gap": gap, "idled": gap.length if gap else 0, "busy": 0,
    }  # fmt: skip
    return CallProfile(message=message, start=start, end=start + length, **{**facts, **more})


def step(number: int | None = 0, micros: int = 1, compute: int = 1000, **more: Any) -> StepProfile:
    times = Breakdown(wall=2000, compute=compute)
    facts: dict[str, Any] = {"start": 0, "end": 2000, "backward": [(500, 1500)] * micros, "gaps": {}, **more}
    return StepProfile(number, times=times, micros=micros, **facts)


def rank(number: int, *calls: CallProfile, steps: list[StepProfile] | None = None, **more: Any) -> RankProfile:
    groups: dict[str, GroupInfo] = more.pop("groups", {})
    facts: dict[str, Any] = {
        "file": f"rank{number}", "world_size": None, "backend": "nccl", "on_device": True, "base_ns": 0,
        "window": Breakdown(wall=2000, compute=1000, idle=500), "outside": 0, "busy_devices": {}, "by_group": {},
        "by_phase": {}, "hta": None, "copies": [], "gaps": [], "recognized_by": {}, "unknown": {}, "fused": {},
        "kernels": 1, "kernel_ns": 1000, "operations": {}, "blocking": 0.0, "long_kernels": 0, "search_ns": 0,
        "on_accelerator": True, "compiled": False, "settings": {}, "marked": True,
    }  # fmt: skip
    return RankProfile(rank=number, groups=groups, steps=steps or [step()], calls=list(calls), **{**facts, **more})


def traces(simulator: Simulator, folder: Path, style: Style | None = None) -> list[Trace]:
    """What the reader makes of the files of a simulated job, by rank."""
    return [TraceFile(path, path.name, None, Limits()).load() for path in write(simulator, folder, style)]


def profiled(simulator: Simulator, folder: Path) -> list[RankProfile]:
    return [profile(trace) for trace in traces(simulator, folder)]
