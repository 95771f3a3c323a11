"""Hangs: why a job stopped making progress, who is to blame, and who only waits.

One pass over all ranks' dumps, a vote for each group, a graph of waits; then the causes in the order in which
they explain each other. Each cause ends as confirmed, ruled out with the measured value, or undecided.
"""

from diagnostics.contract.findings import Detector
from diagnostics.detectors.hang.detector import CAUSES, HangDetector

DETECTORS: tuple[Detector, ...] = (HangDetector(),)

__all__ = ["CAUSES", "DETECTORS", "HangDetector"]
