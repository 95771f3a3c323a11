"""`memory.model_states`: parameters, gradients and optimizer states alone exceed the device."""

from diagnostics.analysis.memory.job import PREDICTED_RANKS, JobMemory
from diagnostics.analysis.memory.measures import read
from diagnostics.causes.declared import Texts, declared
from diagnostics.causes.memory import _shared as shared
from diagnostics.contract.findings import LIKELY, SEEN, EvidenceItem, Finding
from diagnostics.contract.formatting import Bytes

_TEXTS = Texts(__file__)
TOO_MUCH = 0.9  # Share of the device above which model states leave no room for a step.


def decide(job: JobMemory) -> Finding:
    """Compare the model states of one rank with the memory that it may use."""
    states, capacity = job.size.states(), job.capacity()
    placing = (record for record in job.ran_out if record.device == "cuda" and record.placing and record.total_bytes)
    needed = ((record, (record.allocated_bytes or 0) + (record.requested_bytes or 0)) for record in placing)
    alone = (record for record, size in needed if size > TOO_MUCH * (record.total_bytes or 0))
    if states is None and (record := next(alone, None)) is not None:
        return shared.confirmed(
            job,
            _TEXTS.facts(
                placing=record.placing,
                does=_TEXTS.phrase(record.placing if record.placing in _TEXTS else "places"),
                allocated=Bytes(record.allocated_bytes or 0),
                size=Bytes(record.total_bytes or 0),
                more=Bytes(record.requested_bytes or 0),
            ),
            confidence=LIKELY,
            ranks=[] if record.rank is None else [record.rank],
            cost_bytes=record.requested_bytes or 0,
            evidence=(record.item,),
        )
    if states is None:
        return shared.not_recorded(job, "model")
    if capacity is None and job.out_of_memory:
        return shared.not_recorded(job, "capacity", total=Bytes(states.total))
    if capacity is None or states.total < TOO_MUCH * capacity.size_bytes:
        size = Bytes(capacity.size_bytes) if capacity else None
        row = "fit" if size is not None else "fit_unknown"
        return _TEXTS.ruled_out(row, total=Bytes(states.total), size=size)
    model = job.size
    whole, world = 2 * (model.parameter_bytes or 0) + (model.optimizer_bytes or 0), model.world_size or 1
    rows, better, sharded = ["need"], model.traits.needs_less_memory, whole // world
    if world > 1 and sharded < states.total:
        rows.append("shard_by_dtk" if job.evidence.is_dtk and better else "shard")
    if job.evidence.is_dtk and model.traits.shards_parameters and not model.traits.keeps_gathered:
        rows.append("offload")
    if (each := whole // PREDICTED_RANKS) < states.total:
        rows.append("more_ranks")
    figures = {"each": each, "saves": states.total - sharded, "better": better, "many": PREDICTED_RANKS}
    detail = _TEXTS.phrase("seen", states=states, capacity=capacity.size_bytes)
    return shared.confirmed(
        job,
        _TEXTS.facts(rows, states=states, capacity=capacity.size_bytes, **figures),
        confidence=SEEN,
        ranks=range(job.size.world_size or 0),
        cost_bytes=max(0, states.total - capacity.size_bytes) or states.total,
        evidence=(EvidenceItem("config", capacity.source, detail),),
    )


CAUSE = declared(__file__, read, decide)
