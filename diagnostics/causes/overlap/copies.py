"""Copies between host and device run with nothing beside them."""

from diagnostics.analysis.step_profile.copies import CopyProfile
from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding
from diagnostics.contract.formatting import bytes_text, counted
from diagnostics.evidence.trace.host_work import HostCopy

_ASYNCHRONOUS = "a copy from or to pageable memory holds the host, and goes through a buffer of the driver first"


def _words(cost: shared.StepCost, *, copies: CopyProfile, offloads: bool) -> shared.Words:
    """Put it into words; `copies` are of the direction and memory with most of the time."""
    to_device, memory = copies.kind
    direction = "from the host to the device" if to_device else "from the device to the host"
    if memory == "pageable" and to_device:
        change, why = "`pin_memory=True` in the DataLoader and `.to(device, non_blocking=True)`", _ASYNCHRONOUS
    elif memory == "pageable":
        change, why = "copy into a pinned tensor with `non_blocking=True`, every N steps, or not at all", _ASYNCHRONOUS
    elif to_device:
        change = (
            "copy the next batch (or layer) with `non_blocking=True` on a stream of its own while this one computes"
        )
        why = "a copy needs no kernel to stop"
    else:
        change = "copy with `non_blocking=True` on a stream of its own, or keep the values on the device"
        why = "a copy needs no kernel to stop"
    within = f", issued in {copies.within}" if copies.within else ""
    return shared.Words(
        seen=f"exposed copies {direction}",
        summary=f"Copies {direction} ({_figures(copies)}{within}) run with nothing beside them: {cost}.",
        change=change,
        why=why,
        override="strategy.offload=none" if offloads else "",
    )


def _figures(copies: CopyProfile) -> str:
    """Return `pageable memory, 12 transfers of 18.4 MiB on average at 9.9 GB/s`."""
    parts = [f"{copies.kind.memory} memory"] if copies.kind.memory else []
    if not copies.size_bytes:
        return ", ".join([*parts, counted(copies.count, "transfer")])
    each = bytes_text(copies.size_bytes / copies.count)
    rate = f" at {shared.figure(copies.size_bytes / copies.duration)} GB/s" if copies.duration else ""
    return ", ".join([*parts, f"{counted(copies.count, 'transfer')} of {each} on average{rate}"])


def decide(view: Overview) -> Finding:
    """Decide it by the time of the copies between host and device that no compute hides."""
    kinds: set[HostCopy] = {copies.kind for profile in view.profiles for copies in profile.copies}
    if not kinds:
        return shared.ruled_out("0 copies between host and device")
    exposed = view.typical_ms(lambda profile: sum(copies.exposed for copies in profile.copies))
    most = max((copies for profile in view.profiles for copies in profile.copies), key=lambda copies: copies.exposed)
    offloads = view.declared("strategy.offload") not in (None, "none")
    facts = shared.costly(view, exposed, _words, copies=most, offloads=offloads)
    return shared.judged(view, facts, f"{_figures(most)} in the window of a rank", of_transfer=False)


CAUSE = shared.step_cause(__file__, decide, unless=(shared.on_cpu("there is no device to copy to"),))
