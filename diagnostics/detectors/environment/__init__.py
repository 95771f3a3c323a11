"""Environment: variables of NCCL, torch and gloo that are wrong, and the faults of a node that libraries name."""

from diagnostics.detectors.environment.detector import EnvironmentDetector
from diagnostics.detectors.environment.failures import FailureDetector
from diagnostics.findings import Detector

DETECTORS: tuple[Detector, ...] = (EnvironmentDetector(), FailureDetector())
