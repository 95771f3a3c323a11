"""Environment: variables of NCCL, torch and gloo that are wrong, and the faults of a node that libraries name."""

from diagnostics.contract.findings import Detector
from diagnostics.detectors.environment.detector import EnvironmentDetector
from diagnostics.detectors.environment.failures import FailureDetector

DETECTORS: tuple[Detector, ...] = (EnvironmentDetector(), FailureDetector())
