from collections.abc import Callable
from pathlib import Path

import pytest

from diagnostics.contract.findings import Detection
from diagnostics.detectors.overlap import DETECTORS
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.trace.model import TraceFile

Detect = Callable[..., Detection]


@pytest.fixture
def detect() -> Detect:
    """Run the detector on the traces of a folder or on the files named, with whatever else the evidence holds."""

    def run(*paths: Path, **more: object) -> Detection:
        files = [file for path in paths for file in (sorted(path.rglob("*.json*")) if path.is_dir() else [path])]
        evidence = Evidence(root=Path("/"), limits=Limits(), **more)  # type: ignore[arg-type]
        evidence.traces = [TraceFile(file, file.name, None, evidence.limits) for file in files]
        return DETECTORS[0].detect(evidence)

    return run
