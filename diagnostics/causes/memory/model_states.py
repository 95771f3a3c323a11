"""`memory.model_states`: parameters, gradients and optimizer states alone fill the device."""

from diagnostics.analysis.memory.job import PREDICTED_RANKS, JobMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.analysis.memory.model_size import ModelSize, States
from diagnostics.analysis.memory.out_of_memory import RanOut
from diagnostics.causes.declared import declared, texts_beside
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, worded
from diagnostics.contract.formatting import Bytes, bytes_text

ID = "memory.model_states"
_TEXTS = texts_beside(__file__)
TOO_MUCH = 0.9
"""Of the device: model states beyond this leave no room for a step (an estimate over 80 % of the device is where
arXiv 2411.06465 stops promising that a job fits)."""


def _words(finding: Finding, states: States, capacity_bytes: int, model: ModelSize, is_dtk: bool) -> Text:
    """Say what the model states of one rank need of what it may use, and how to need less."""
    total, capacity = bytes_text(states.total), bytes_text(capacity_bytes)
    parts = [bytes_text(size) for size in (states.parameters, states.gradients, states.optimizer)]
    remedies = list[Remedy]()
    whole, world = 2 * (model.parameter_bytes or 0) + (model.optimizer_bytes or 0), model.world_size or 1
    if world > 1 and (sharded := whole // world) < states.total:
        better, saves = model.traits.needs_less_memory, f"{bytes_text(states.total - sharded)} of {total}"
        why = "each rank keeps 1/N of parameters, gradients and optimizer states"
        override = f"strategy={better}" if better else ""
        remedies.append(shared.fix(is_dtk, override, "shard the model with fully_shard over all ranks", why, saves))
    if is_dtk and model.traits.shards_parameters and not model.traits.keeps_gathered:
        why, saves = "model states live in host memory", f"{total} of {total}"
        remedies.append(Remedy("override", "strategy.offload=parameters", why, saves))
    if (each := whole // PREDICTED_RANKS) < states.total:
        change = f"use more ranks: {PREDICTED_RANKS} need {bytes_text(each)} each when sharded"
        remedies.append(Remedy("code", change, "ZeRO-3"))
    return Text(
        summary=(
            f"Parameters {parts[0]}, gradients {parts[1]} and optimizer states {parts[2]} need {total} of the "
            f"{capacity} of each rank."
        ),
        measured=f"model states {total} a rank of {capacity}",
        remedies=tuple(remedies),
    )


def _placing(job: JobMemory) -> RanOut | None:
    """Return a rank that ran out where model states are placed, and for want of nothing else."""
    for record in job.ran_out:
        needed = (record.allocated_bytes or 0) + (record.requested_bytes or 0)
        if record.device == "cuda" and record.placing and record.total_bytes and needed > TOO_MUCH * record.total_bytes:
            return record
    return None


def decide(job: JobMemory) -> list[Finding]:
    """Compare the model states of one rank with what it may use."""
    states, capacity = job.size.states(), job.capacity()
    if states is None and (record := _placing(job)) is not None:
        return shared.confirmed(
            ID,
            job,
            worded(
                _TEXTS,
                placing=record.placing,
                held=Bytes(record.allocated_bytes or 0),
                size=Bytes(record.total_bytes or 0),
                more=Bytes(record.requested_bytes or 0),
            ),
            confidence=0.85,
            ranks=[] if record.rank is None else [record.rank],
            cost_bytes=record.requested_bytes or 0,
            evidence=(record.item,),
        )
    if states is None:
        return shared.not_recorded(ID, job, "model")
    if capacity is None and job.out_of_memory:
        return shared.not_recorded(ID, job, "capacity", total=Bytes(states.total))
    if capacity is None or states.total < TOO_MUCH * capacity.size_bytes:
        size = Bytes(capacity.size_bytes) if capacity else None
        measured = "model states {total} a rank" + (" of {size}" if size is not None else "")
        return shared.ruled_out(ID, "The model states fit.", measured, total=Bytes(states.total), size=size)
    detail = f"model states {bytes_text(states.total)} a rank of {bytes_text(capacity.size_bytes)}"
    return shared.confirmed(
        ID,
        job,
        worded(_words, states=states, capacity_bytes=capacity.size_bytes, model=job.size, is_dtk=job.is_dtk),
        confidence=0.95,
        ranks=range(job.size.world_size or 0),
        cost_bytes=max(0, states.total - capacity.size_bytes) or states.total,
        evidence=(EvidenceItem("config", capacity.source, detail),),
    )


CAUSE = declared(__file__, read, decide)
