"""The measurement itself destroys overlap, so nothing else is concluded from these traces."""

from dataclasses import dataclass

from diagnostics.analysis.step_profile.instrument import SWITCHES
from diagnostics.analysis.step_profile.overview import Overview, overview
from diagnostics.causes.overlap._examples import example
from diagnostics.causes.overlap._shared import NothingUsable, NotIt, OnCpu, ruled_out, undecided
from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text


@dataclass(frozen=True, slots=True)
class Spoilt:
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
            remedy = Remedy("environment", f"unset {self.variable}", f"{SWITCHES[self.variable]}; then record anew")
        summary = (
            f"The measurement itself destroys overlap: {self}. Nothing is concluded from this trace; record it anew."
        )
        return Text(summary=summary, measured=str(self), remedies=(remedy,))

    def __str__(self) -> str:
        """Return why the work is serialised."""
        if self.variable:
            return f"{self.variable}={self.value} was set: {SWITCHES[self.variable]}"
        return "every long kernel is over before anything else is launched"


@dataclass(frozen=True, slots=True)
class LaunchesRunAhead(NotIt):
    """Launches do not wait for their kernels."""

    share: float

    def measured(self) -> str:
        """Return the value that rules it out."""
        return f"{self.share:.0%} of long kernels end before the next launch"


def decide(view: Overview) -> list[Finding]:
    """Decide it by the environment, and by the kernels that end before the next launch."""
    cause = CAUSE.id
    if view.unusable in ("no_trace", "unreadable"):
        return [undecided(cause, NothingUsable(view.unusable))]
    if not view.on_device:
        return [ruled_out(cause, OnCpu("instruments"))]
    instrument = view.instrument
    if instrument is None:
        return [ruled_out(cause, LaunchesRunAhead(max(one.blocking for one in view.profiles)))]
    facts = Spoilt(instrument.variable, instrument.value)
    item = EvidenceItem("environment" if instrument.variable else "trace", view.profiles[0].file, str(facts))
    return [
        Finding(cause=cause, status="confirmed", facts=facts, confidence=0.9, ranks=instrument.ranks, evidence=(item,))
    ]


CAUSE = Cause(
    id="overlap.instrumented",
    title="the measurement itself destroys overlap",
    outcome="slow",
    branch="slow",
    facts=overview,
    decide=decide,
    decided_from="traces, environment",
    remedy="unset CUDA_LAUNCH_BLOCKING and the like, then measure again",
    example=example("launch_blocking"),
)
