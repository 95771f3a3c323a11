"""The measurement itself prevents overlap, so nothing else is concluded from these traces, or stops the host."""

from diagnostics.analysis.step_profile.account import MOST
from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._idle import idle, judged_idle
from diagnostics.causes.overlap._shared import on_cpu, step_cause
from diagnostics.contract.findings import CERTAIN, EvidenceItem, Finding, confirmed

_TEXTS = Texts(__file__)


def decide(view: Overview) -> Finding:
    """Decide from the environment, launches that only return when their kernel is finished, and the profiler's work."""
    instrument = view.instrument
    if instrument is None:
        if (served := idle(view, "profiler")).ms >= MOST * view.step_ms > 0:
            return judged_idle(view, served, CERTAIN, _TEXTS, "profiler")
        return _TEXTS.ruled_out(share=max(profile.blocking for profile in view.profiles), idle=served)
    name = instrument.variable
    does = _TEXTS.phrase(name) if name else ""
    seen = _TEXTS.phrase("variable" if name else "launches", name=name, value=instrument.value, does=does)
    facts = _TEXTS.facts(("default", "unset" if name else "unset_launches"), seen=seen, name=name, does=does)
    item = EvidenceItem("environment" if name else "trace", view.profiles[0].file, seen)
    return confirmed(facts=facts, confidence=CERTAIN, ranks=instrument.ranks, evidence=(item,))


CAUSE = step_cause(__file__, decide, unless=(on_cpu("cpu_launch"),), despite_instrument=True)
