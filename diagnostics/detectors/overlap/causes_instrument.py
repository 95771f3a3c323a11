"""A measurement that destroys what it measures: refuse to diagnose, and say how to record anew."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy
from diagnostics.detectors.overlap.decide import ruled_out
from diagnostics.evidence.model import Evidence

CAUSES = ("overlap.instrumented",)
_ON = frozenset({"1", "true", "yes", "on", "y"})
_SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "HIP_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "AMD_SERIALIZE_KERNEL": "kernels run one after the other",
    "TORCH_NCCL_ENABLE_TIMING": "events around every collective keep it from overlapping",
    "TORCH_NCCL_BLOCKING_WAIT": "the host waits for every collective",
    "NCCL_BLOCKING_WAIT": "the host waits for every collective",
}
_BLOCKED = 0.98
_LEAST_KERNELS = 30


def decide(view: Overview, evidence: Evidence) -> list[Finding]:
    """The only cause of this family."""
    cause = CAUSES[0]
    if not view.on_device:
        return [ruled_out(cause, "work runs on CPU")]
    found = _switched(view)
    if found:
        name, value, ranks = found
        return [_refuse(view, f"{name}={value} was set: {_SWITCHES[name]}", Remedy(
            "environment", f"unset {name}", f"{_SWITCHES[name]}; then record anew"), ranks, "environment")]  # fmt: skip
    blocked = tuple(
        one.rank for one in view.profiles if one.long_kernels >= _LEAST_KERNELS and one.blocking >= _BLOCKED
    )
    if blocked and len(blocked) == len(view.profiles):
        why = "every long kernel is over before anything else is launched"
        return [_refuse(view, why, Remedy(
            "environment", "unset CUDA_LAUNCH_BLOCKING (or what else synchronises after every launch)",
            "launches that wait leave nothing to overlap; then record anew"), blocked, "trace")]  # fmt: skip
    share = max((one.blocking for one in view.profiles), default=0.0)
    return [ruled_out(cause, f"{share:.0%} of long kernels end before the next launch")]


def _switched(view: Overview) -> tuple[str, str, tuple[int, ...]] | None:
    for name in _SWITCHES:
        ranks = {rank: values[name] for rank, values in view.environment.items() if values.get(name, "").lower() in _ON}
        if ranks:
            return name, next(iter(ranks.values())), view.ranks if -1 in ranks else tuple(sorted(ranks))
    return None


def _refuse(view: Overview, why: str, remedy: Remedy, ranks: tuple[int, ...], kind: str) -> Finding:
    return Finding(
        cause=CAUSES[0],
        status="confirmed",
        summary=f"The measurement itself destroys overlap: {why}. Nothing is concluded from this trace; record anew.",
        confidence=0.9,
        ranks=ranks,
        evidence=(EvidenceItem(kind, view.profiles[0].file, why),),
        remedies=(remedy,),
        measured=why,
    )
