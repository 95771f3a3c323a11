"""Jobs put together from gathers, without files."""

from typing import Any

from msgspec.structs import replace

from diagnostics.analysis.memory.gathers import Gather, Kind, Traffic, UnitUse
from diagnostics.analysis.memory.job import JobMemory, RankMemory
from diagnostics.analysis.memory.model_size import ModelSize
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, RunEvidence

MIB = 1 << 20
SITE = Frame("/home/me/train.py", 58, "step")


def sharded(whole_mib: int = 100) -> ModelSize:
    whole = whole_mib * MIB
    return ModelSize(2, "fsdp", whole, whole, 2 * whole, "summary.json", 2)


def call(kind: Kind, mib: int, **more: Any) -> Gather:
    return replace(Gather(kind, mib * MIB, 2, "trace.json", "trace"), **more)


def job(
    size: ModelSize, *calls: Gather, units: dict[str, UnitUse] | None = None, run: dict[str, Any] | None = None
) -> JobMemory:
    traffic = Traffic(gathers=list(calls), units=units or {})
    ranks = {rank: RankMemory(rank, trace_file="trace.json", trace=traffic) for rank in range(2)}
    record = None
    if run is not None:
        record = RunEvidence(
            root=None, status=None, config=run, manifest={}, summary={}, plan={}, heartbeats={}, events={}
        )
    return JobMemory(Evidence(root=None, limits=Limits(), run=record), size, ranks)
