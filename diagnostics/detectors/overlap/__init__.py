"""Overlap: where the time of a step goes, how much of the communication is exposed, and why."""

from diagnostics.contract.findings import Detection, Finding
from diagnostics.evidence.model import Evidence

CAUSES = (
    "overlap.accumulation_sync",
    "overlap.single_bucket",
    "overlap.small_buckets",
    "overlap.unbucketed",
    "overlap.find_unused",
    "overlap.same_stream",
    "overlap.blocking_wait",
    "overlap.root_only_wrapping",
    "overlap.no_prefetch",
    "overlap.small_units",
    "overlap.skew",
    "overlap.communication_bound",
    "overlap.host_bound",
    "overlap.sync_point",
    "overlap.data_bound",
    "overlap.instrumented",
)
_REFUSED = "The measurement itself destroys overlap, so nothing is concluded from this trace."


class OverlapDetector:
    """Decides all causes of a slow step from profiler traces; one pass over the files serves them all."""

    name = "overlap"
    causes = CAUSES

    def detect(self, evidence: Evidence) -> Detection:
        """Decide every cause."""
        from diagnostics.analysis.step_profile.overview import overview
        from diagnostics.analysis.step_profile.report import measures
        from diagnostics.detectors.overlap import (
            causes_bound,
            causes_idle,
            causes_instrument,
            causes_order,
            causes_reduction,
            causes_units,
            decide,
        )

        if not (evidence.traces or evidence.nsys):
            return Detection([decide.undecided(cause, "There is no profiler trace.") for cause in CAUSES])
        view = overview(evidence)
        evidence.problems.extend(view.problems)
        if not view.profiles:
            why = "No profiler trace could be used."
            return Detection([decide.undecided(cause, why) for cause in CAUSES])
        findings: list[Finding] = causes_instrument.decide(view, evidence)
        if any(finding.status == "confirmed" for finding in findings):
            others = [cause for cause in CAUSES if cause != "overlap.instrumented"]
            findings += [decide.undecided(cause, _REFUSED, "a trace without it") for cause in others]
        else:
            for family in (causes_reduction, causes_order, causes_units, causes_bound, causes_idle):
                findings += family.decide(view, evidence)
        return Detection(findings, {"overlap": measures(view)})


DETECTORS = (OverlapDetector(),)
