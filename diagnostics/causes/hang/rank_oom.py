"""A rank ran out of memory, on the host or on its device."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _endings
from diagnostics.causes.hang._endings import HOST_MEMORY, Change, Ended
from diagnostics.contract.findings import Finding, Remedy, Text

ID = "hang.rank_oom"
_UNNAMED_DEVICE_CONFIDENCE = 0.45
"""A device's memory ran out in a process without a rank: that one rank differed from its peers is not shown, so it is a
suspicion beside those about what takes the memory."""
CHANGES: dict[str, Change] = {
    "": (
        "lower what this rank holds at {at}: smaller micro-batch, sharding, activation checkpointing",
        "one rank that runs out of memory stops all",
    ),
    "cgroup": HOST_MEMORY,
    "host_memory": HOST_MEMORY,
    "nccl_memory": (
        "leave NCCL room on the device: torch.cuda.set_per_process_memory_fraction(0.9), a smaller micro-batch, fewer "
        "process groups, or a lower NCCL_BUFFSIZE",
        "NCCL takes its buffers from what torch's allocator left over",
    ),
}
"""What is known beyond the kind of the ending (`evidence.endings.Detail`) -> how to fix it."""


def _text(finding: Finding, ended: Ended) -> Text:
    remedies = [ended.remedy(finding, CHANGES, ended.first.detail)]
    if ended.is_dtk_run and ended.first.detail not in CHANGES.keys() - {""}:
        remedies.insert(0, Remedy("override", "train.micro_batch_size=1", "activations shrink with the micro-batch"))
    return ended.text(finding, f"ran out of memory: {ended.first.what}", tuple(remedies))


def decide(stall: Stall) -> list[Finding]:
    """Decide it by the endings of the ranks."""
    case = _endings.first_to_end(stall, "oom")
    if case is None:
        return [_endings.unconfirmed(stall, ID, _endings.ERROR_FILES)]
    confidence = _endings.CONFIDENCE
    if not case.culprits:
        on_device = case.first.signal is None and not case.first.detail
        confidence = _UNNAMED_DEVICE_CONFIDENCE if on_device else _endings.UNNAMED_CONFIDENCE
    return [_endings.confirmed(stall, ID, case, _text, confidence)]


CAUSE = declared(__file__, explain, decide)
