"""The measurement itself destroys overlap, so nothing else is concluded from these traces."""

from msgspec import Struct

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.overlap._shared import on_cpu, ruled_out, step_cause
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text

_DOES: dict[str, str] = table_beside(__file__)["switches"]
"""Variable -> what it does to a trace."""


class Spoilt(Struct, frozen=True):
    """What serialises the work."""

    variable: str
    """Empty: the kernels show that every launch blocks, and no variable is recorded."""
    value: str

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        remedy = Remedy(
            "environment",
            "unset CUDA_LAUNCH_BLOCKING (or what else synchronises after every launch)",
            "launches that wait leave nothing to overlap; then record anew",
        )
        if self.variable:
            remedy = Remedy("environment", f"unset {self.variable}", f"{_DOES[self.variable]}; then record anew")
        summary = (
            f"The measurement itself destroys overlap: {self}. Nothing is concluded from this trace; record it anew."
        )
        return Text(summary=summary, measured=str(self), remedies=(remedy,))

    def __str__(self) -> str:
        """Return why the work is serialised."""
        if self.variable:
            return f"{self.variable}={self.value} was set: {_DOES[self.variable]}"
        return "every launch of a long kernel returns only when the kernel is over"


def decide(view: Overview) -> Finding:
    """Decide it by the environment, and by the launches that return only when their kernel is over."""
    instrument = view.instrument
    if instrument is None:
        share = max(profile.blocking for profile in view.profiles)
        return ruled_out("{share:.0%} of long kernels hold their launch until they are over", share=share)
    facts = Spoilt(instrument.variable, instrument.value)
    item = EvidenceItem("environment" if instrument.variable else "trace", view.profiles[0].file, str(facts))
    return Finding(cause="", status="confirmed", facts=facts, confidence=0.9, ranks=instrument.ranks, evidence=(item,))


CAUSE = step_cause(__file__, decide, unless=(on_cpu("no launch can block"),), despite_instrument=True)
