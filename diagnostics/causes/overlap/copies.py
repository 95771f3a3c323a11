"""Copies between host and device run with nothing beside them."""

from diagnostics.analysis.step_profile.copies import CopyProfile
from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding
from diagnostics.contract.formatting import bytes_text, counted
from diagnostics.evidence.trace.host_work import HostCopy

_WORDS = shared.words_beside(__file__)


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
    case = f"{'to' if most.kind.to_device else 'from'}_{'pageable' if most.kind.memory == 'pageable' else 'pinned'}"
    within, override = f", issued in {most.within}" if most.within else "", "strategy.offload=none" if offloads else ""
    shown = _figures(most)
    facts = shared.costly(view, exposed, _WORDS, case=case, figures=shown, within=within, override=override)
    return shared.judged(view, facts, f"{shown} in the window of a rank", of_transfer=False)


CAUSE = shared.step_cause(__file__, decide, unless=(shared.on_cpu("there is no device to copy to"),))
