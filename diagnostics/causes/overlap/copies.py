"""Copies between host and device run without concurrent compute."""

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap import _shared as shared
from diagnostics.contract.findings import Finding
from diagnostics.evidence.trace.model import HostCopy

_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the time of copies between host and device that is not hidden by compute."""
    kinds: set[HostCopy] = {copies.kind for profile in view.profiles for copies in profile.copies}
    if not kinds:
        return _TEXTS.ruled_out()
    exposed = view.typical_ms(lambda profile: sum(copies.exposed for copies in profile.copies))
    most = max((copies for profile in view.profiles for copies in profile.copies), key=lambda copies: copies.exposed)
    offloads = view.declared("strategy.offload") not in (None, "none")
    case = f"{'to' if most.kind.to_device else 'from'}_{'pageable' if most.kind.memory == 'pageable' else 'pinned'}"
    within = _TEXTS.phrase("issued", within=most.within) if most.within else ""
    override = "strategy.offload=none" if offloads else ""
    row = "rate" if most.size_bytes and most.duration else "size" if most.size_bytes else "count"
    each, rate = most.size_bytes / most.count, most.size_bytes / (most.duration or 1)
    # Such as `pageable memory, 12 transfers of 18.4 MiB on average at 9.9 GB/s`.
    shown = [_TEXTS.phrase("memory", memory=most.kind.memory)] if most.kind.memory else []
    shown.append(_TEXTS.phrase(row, count=most.count, each=each, rate=rate))
    facts = shared.costly(view, exposed, _TEXTS, case, shown=shown, within=within, override=override)
    return shared.judged(view, facts, _TEXTS.phrase("shown", shown=shown), of_transfer=False)


CAUSE = shared.step_cause(__file__, decide, unless=(shared.on_cpu("cpu_copies"),))
