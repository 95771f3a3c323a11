"""Numerics: the first figure that is not finite, and replicas that drift apart."""

from diagnostics.detectors.numerics.detector import NumericsDetector
from diagnostics.findings import Detector

DETECTORS: tuple[Detector, ...] = (NumericsDetector(),)
