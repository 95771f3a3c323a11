"""The detector of numerics: one finding for each of its two causes."""

from diagnostics.contract.findings import Detection
from diagnostics.detectors.numerics import divergence, non_finite
from diagnostics.evidence.model import Evidence


class NumericsDetector:
    """NaN and infinity, and replicas that are not alike."""

    name = "numerics"
    causes: tuple[str, ...] = (non_finite.CAUSE, divergence.CAUSE)

    def detect(self, evidence: Evidence) -> Detection:
        """Decide both. A metrics.jsonl that is damaged becomes a line under coverage."""
        return Detection([non_finite.decide(evidence, evidence.problems), divergence.decide(evidence)])
