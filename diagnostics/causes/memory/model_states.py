"""`memory.model_states`: parameters, gradients and optimizer states alone fill the device."""

from dataclasses import dataclass

from diagnostics.analysis.memory.job import PREDICTED_RANKS, JobMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.analysis.memory.model_size import ModelSize, States
from diagnostics.analysis.memory.out_of_memory import RanOut
from diagnostics.causes.memory._shared import WASTE, NotRecorded, confirmed, ruled_out, undecided
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text
from diagnostics.contract.formatting import Bytes, bytes_text

ID = "memory.model_states"
TOO_MUCH = 0.9
"""Of the device: model states beyond this leave no room for a step (an estimate over 80 % of the device is where
arXiv 2411.06465 stops promising that a job fits)."""


@dataclass(frozen=True, slots=True)
class ModelStates:
    """Model states of one rank against what it may use."""

    states: States
    capacity_bytes: int
    model: ModelSize
    is_dtk: bool

    def text(self, finding: Finding) -> Text:
        """Say what the states need and how to need less."""
        total = bytes_text(self.states.total)
        measured = f"model states {total} a rank of {bytes_text(self.capacity_bytes)}"
        parts = [bytes_text(size) for size in (self.states.parameters, self.states.gradients, self.states.optimizer)]
        summary = "Parameters {}, gradients {} and optimizer states {}".format(*parts)
        summary += f" need {total} of the {bytes_text(self.capacity_bytes)} of each rank."
        return Text(summary=summary, measured=measured, remedies=tuple(self._remedies()))

    def _remedies(self) -> list[Remedy]:
        model, total, remedies = self.model, self.states.total, list[Remedy]()
        whole, world = 2 * (model.parameter_bytes or 0) + (model.optimizer_bytes or 0), model.world_size or 1
        sharded = whole // world
        if world > 1 and sharded < total:
            better, saves = model.traits.needs_less_memory, f"{bytes_text(total - sharded)} of {bytes_text(total)}"
            why = "each rank keeps 1/N of parameters, gradients and optimizer states"
            remedy = Remedy("code", "shard the model with fully_shard over all ranks", why, saves)
            if self.is_dtk and better:
                remedy = Remedy("override", f"strategy={better}", why, saves)
            remedies.append(remedy)
        if self.is_dtk and model.traits.shards_parameters and not model.traits.keeps_gathered:
            why, saves = "model states live in host memory", f"{bytes_text(total)} of {bytes_text(total)}"
            remedies.append(Remedy("override", "strategy.cpu_offload=true", why, saves))
        if (each := whole // PREDICTED_RANKS) < total:
            change = f"use more ranks: {PREDICTED_RANKS} need {bytes_text(each)} each when sharded"
            remedies.append(Remedy("code", change, "ZeRO-3"))
        return remedies


@dataclass(frozen=True, slots=True)
class Placing:
    """Memory ran out while model states were placed on the device."""

    record: RanOut

    def text(self, finding: Finding) -> Text:
        """Say what was being placed, and how to need less."""
        one = self.record
        held, size = bytes_text(one.allocated_bytes or 0), bytes_text(one.total_bytes or 0)
        return Text(
            summary=(
                f"Memory ran out in {one.placing}, which puts model states on the device: {held} of {size} were in "
                f"tensors, and {bytes_text(one.requested_bytes or 0)} more did not fit."
            ),
            measured=f"{held} of {size} in tensors in {one.placing}",
            remedies=(
                Remedy("code", "shard the model over all ranks (fully_shard, ZeRO-3), or offload it", "ZeRO, table 1"),
                Remedy("code", "load it in bfloat16, quantise it, or train adapters only (LoRA)", "fewer bytes each"),
            ),
        )


def _placing(job: JobMemory) -> RanOut | None:
    """Return a rank that ran out where model states are placed, and for want of nothing else."""
    return next(
        (
            one
            for one in job.ran_out
            if one.device == "cuda"
            and one.placing
            and one.total_bytes
            and (one.allocated_bytes or 0) + (one.requested_bytes or 0) > TOO_MUCH * one.total_bytes
        ),
        None,
    )


def decide(job: JobMemory) -> list[Finding]:
    """Compare the model states of one rank with what it may use."""
    states, capacity = job.size.states(), job.capacity()
    if states is None and (one := _placing(job)) is not None:
        ranks = [] if one.rank is None else [one.rank]
        return confirmed(
            ID,
            job,
            Placing(one),
            confidence=0.85,
            ranks=ranks,
            cost_bytes=one.requested_bytes or 0,
            evidence=(one.item,),
        )
    if states is None:
        return undecided(ID, NotRecorded("model", job.is_dtk))
    if capacity is None and job.out_of_memory:
        return undecided(ID, NotRecorded("capacity", job.is_dtk, f"model states {bytes_text(states.total)} a rank"))
    if capacity is None or states.total < TOO_MUCH * capacity.size_bytes:
        size = Bytes(capacity.size_bytes) if capacity else None
        measured = "model states {total} a rank" + (" of {size}" if size is not None else "")
        return ruled_out(ID, "The model states fit.", measured, total=Bytes(states.total), size=size)
    detail = f"model states {bytes_text(states.total)} a rank of {bytes_text(capacity.size_bytes)}"
    return confirmed(
        ID,
        job,
        ModelStates(states, capacity.size_bytes, job.size, job.is_dtk),
        confidence=0.95,
        ranks=range(job.size.world_size or 0),
        cost_bytes=max(0, states.total - capacity.size_bytes) or states.total,
        evidence=(EvidenceItem("config", capacity.source, detail),),
    )


CAUSE = Cause(
    id=ID,
    title="parameters, gradients and optimizer states alone do not fit",
    outcome="at_risk",
    branch="memory.demand",
    facts=read,
    decide=decide,
    decided_from="parameter count, optimizer, strategy, device memory; where a traceback ran out of it",
    remedy="shard more (strategy=zero3 or fsdp), offload, or more ranks",
    explained_by=WASTE,
    source="ZeRO (arXiv 1910.02054), table 1: bytes of model states per rank",
)
