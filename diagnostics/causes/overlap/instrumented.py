"""The measurement itself destroys overlap, so nothing else is concluded from these traces."""

from msgspec import Struct

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._shared import on_cpu, step_cause
from diagnostics.contract.findings import EvidenceItem, Finding, Text
from diagnostics.contract.formatting import Phrase

_TEXTS = Texts(__file__)


class Spoilt(Struct, frozen=True):
    """What serialises the work."""

    variable: str
    """Empty: the kernels show that every launch blocks, and no variable is recorded."""
    value: str

    def seen(self) -> Phrase:
        """Return why the work is serialised."""
        does = _TEXTS.phrase(self.variable) if self.variable else ""
        row = "variable" if self.variable else "launches"
        return _TEXTS.phrase(row, name=self.variable, value=self.value, does=does)

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        does = _TEXTS.phrase(self.variable) if self.variable else ""
        said = ("usual", "unset" if self.variable else "unset_launches")
        return _TEXTS(finding, said, seen=self.seen(), name=self.variable, does=does)


def decide(view: Overview) -> Finding:
    """Decide it by the environment, and by the launches that return only when their kernel is over."""
    instrument = view.instrument
    if instrument is None:
        share = max(profile.blocking for profile in view.profiles)
        return _TEXTS.ruled_out(share=share)
    facts = Spoilt(instrument.variable, instrument.value)
    item = EvidenceItem("environment" if instrument.variable else "trace", view.profiles[0].file, facts.seen())
    return Finding(status="confirmed", facts=facts, confidence=0.9, ranks=instrument.ranks, evidence=(item,))


CAUSE = step_cause(__file__, decide, unless=(on_cpu("cpu_launch"),), despite_instrument=True)
