"""Numerics: the first figure that is not finite, and replicas that drift apart."""

from diagnostics.contract.findings import Detector
from diagnostics.detectors.numerics.detector import NumericsDetector

DETECTORS: tuple[Detector, ...] = (NumericsDetector(),)
