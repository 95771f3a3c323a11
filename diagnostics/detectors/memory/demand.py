"""What the step itself needs: `memory.model_states` (alone too much) and `memory.activations` (most of the peak)."""

from dataclasses import dataclass

from diagnostics.analysis.memory import categories
from diagnostics.analysis.memory.categories import ACTIVATIONS, LOGITS, Peak
from diagnostics.analysis.memory.job import RankMemory, Situation
from diagnostics.analysis.memory.model_size import Facts
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Remedy
from diagnostics.detectors.memory.predict import RANKS
from diagnostics.detectors.memory.say import ranks, size

STATES = "memory.model_states"
WORK = "memory.activations"
TOO_MUCH = 0.9
"""Of the device: model states beyond this leave no room for a step."""
TIGHT = 0.9
"""Of the device: a peak beyond this is as good as out of memory."""
DOMINANT = 0.5
_SHARD_MORE = {"ddp": "zero3", "single": "zero3", "dp": "zero3", "zero1": "zero3", "zero2": "zero3", "hsdp": "zero3"}
_RECORD = "record=full and strategy, model and optimizer in the run's configuration"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one rank may use."""

    size_bytes: int
    source: str


def capacity(situation: Situation) -> Capacity | None:
    """The device by the out-of-memory text or telemetry; on CPU this node's memory over its ranks."""
    for one in situation.ran_out:
        if one.limit_bytes or one.total_bytes:
            return Capacity(one.limit_bytes or one.total_bytes or 0, one.item.file)
    for timeline in situation.nodes.values():
        totals = [device.total_bytes for device in timeline.devices.values() if device.total_bytes]
        if totals:
            return Capacity(min(totals), "telemetry")
        if timeline.host_total_bytes and timeline.rank_rss:
            return Capacity(timeline.host_total_bytes // len(timeline.rank_rss), "telemetry")
    return None


def model_states(situation: Situation) -> Finding:
    """Whether parameters, gradients and optimizer states alone fill the device."""
    states, room = situation.states(), capacity(situation)
    if states is None:
        missing = _RECORD if situation.is_dtk else "the size of the model and its optimizer"
        return Finding(cause=STATES, status="undecided", summary="The model's size is not known.", missing=missing)
    measured = f"model states {size(states.total)} a rank" + (f" of {size(room.size_bytes)}" if room else "")
    if room is None:
        if situation.out_of_memory:
            summary = f"The model states need {size(states.total)} a rank; how large the device is was not recorded."
            return Finding(cause=STATES, status="undecided", summary=summary, measured=measured, missing="telemetry")
        return Finding(cause=STATES, status="ruled_out", summary="The model states fit.", measured=measured)
    if states.total < TOO_MUCH * room.size_bytes:
        return Finding(cause=STATES, status="ruled_out", summary="The model states fit.", measured=measured)
    blamed = tuple(range(situation.facts.world_size or 0))
    summary = f"Parameters {size(states.parameters)}, gradients {size(states.gradients)} and optimizer states "
    summary += f"{size(states.optimizer)} need {size(states.total)} of the {size(room.size_bytes)} of each rank."
    return Finding(
        cause=STATES,
        status="confirmed",
        summary=summary,
        confidence=0.95,
        ranks=blamed,
        cost=Cost(max(0, states.total - room.size_bytes) or states.total, "bytes"),
        evidence=(EvidenceItem("config", room.source, measured),),
        remedies=tuple(_smaller(situation, states.total)),
        measured=measured,
    )


def _smaller(situation: Situation, total: int) -> list[Remedy]:
    facts = situation.facts
    found: list[Remedy] = []
    world = facts.world_size or 1
    if facts.parameter_bytes is None or facts.optimizer_bytes is None:
        return found
    whole = 2 * facts.parameter_bytes + facts.optimizer_bytes
    sharded = whole // world
    if world > 1 and sharded < total:
        better = _SHARD_MORE.get(facts.strategy)
        saves = f"{size(total - sharded)} of {size(total)}"
        why = "each rank keeps 1/N of parameters, gradients and optimizer states"
        if situation.is_dtk and better:
            found.append(Remedy("override", f"strategy={better}", why, saves))
        else:
            found.append(Remedy("code", "shard the model with fully_shard over all ranks", why, saves))
    if situation.is_dtk and facts.strategy in ("fsdp", "zero3", "hsdp"):
        why = "parameters, gradients and optimizer states live in host memory"
        found.append(Remedy("override", "strategy.cpu_offload=true", why, f"{size(total)} of {size(total)}"))
    if whole // RANKS < total:
        found.append(Remedy("code", f"use more ranks: {RANKS} need {size(whole // RANKS)} each when sharded", "ZeRO-3"))
    return found


def activations(situation: Situation) -> Finding:
    """Whether what forward keeps for backward is most of a peak that does not fit."""
    peaks = [(rank, found) for rank in situation.all() if (found := categories.peak(situation, rank)) is not None]
    if not peaks:
        missing = "record=full" if situation.is_dtk else "a profiler trace with profile_memory=True"
        summary = "What the peak consists of was not recorded."
        return Finding(cause=WORK, status="undecided", summary=summary, missing=missing)
    rank, peak = max(peaks, key=lambda one: one[1].total_bytes)
    part = peak.share(ACTIVATIONS, LOGITS)
    work = peak.categories.get(ACTIVATIONS, 0) + peak.categories.get(LOGITS, 0)
    measured = f"activations {size(work)} = {part:.0%} of the peak of {size(peak.total_bytes)}".replace("%", " %")
    room = capacity(situation)
    tight = situation.out_of_memory or (room is not None and peak.total_bytes >= TIGHT * room.size_bytes)
    if not tight or part < DOMINANT:
        why = (
            "Activations are not most of the peak." if part < DOMINANT else "Activations are most of a peak that fits."
        )
        return Finding(cause=WORK, status="ruled_out", summary=why, measured=measured)
    return _activations(situation, rank, peak, work, measured)


def _activations(situation: Situation, rank: RankMemory, peak: Peak, work: int, measured: str) -> Finding:
    curve = rank.curve
    at = f" in step {curve.peak_step}, {curve.peak_region}" if curve is not None and curve.peak_step is not None else ""
    logits = peak.categories.get(LOGITS, 0)
    summary = f"Activations hold {size(work)} of the peak of {size(peak.total_bytes)} on {ranks([rank.rank])}{at}"
    summary += f", {size(logits)} of them logits." if logits > work / 4 else "."
    return Finding(
        cause=WORK,
        status="confirmed",
        summary=summary,
        confidence=0.85,
        ranks=tuple(one.rank for one in situation.all() if one.curve is not None),
        step=curve.peak_step if curve is not None else None,
        cost=Cost(work, "bytes"),
        evidence=(EvidenceItem("trace", rank.trace_file, measured),),
        remedies=tuple(_less_work(situation, work, logits, peak)),
        measured=measured,
    )


def _less_work(situation: Situation, work: int, logits: int, peak: Peak) -> list[Remedy]:
    facts: Facts = situation.facts
    run = situation.evidence.run
    found: list[Remedy] = []
    saves = f"up to {size(max(0, work - logits))} of {size(peak.total_bytes)}"
    why = "only the inputs of each block are kept; the rest is computed again in backward"
    if run is None:
        found.append(Remedy("code", "checkpoint each block (torch.utils.checkpoint)", why, saves))
    elif not run.get("train.activation_checkpoint_every"):
        found.append(Remedy("override", "train.activation_checkpoint_every=1", why, saves))
    micro = run.get("train.micro_batch_size") if run is not None else None
    if isinstance(micro, int) and micro > 1:
        half = f"{size(work / 2)} of {size(peak.total_bytes)}"
        change = f"train.micro_batch_size={micro // 2}"
        found.append(Remedy("override", change, "activations are proportional to the micro-batch", half))
    if logits > work / 4 and not facts.strategy:
        found.append(Remedy("code", "compute the loss in chunks (fused cross entropy)", "logits exist in pieces"))
    return found
