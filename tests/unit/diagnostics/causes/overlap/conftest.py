from collections.abc import Callable
from pathlib import Path

import pytest

from diagnostics.causes.registry import Registry, built_in
from diagnostics.contract.findings import Detection
from diagnostics.diagnose import decide
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers.trace import TraceFile

CAUSES = tuple(cause for cause in built_in() if cause.id.startswith("overlap.") and cause.branch != "slow.layout")
"""Those that traces alone decide."""
Detect = Callable[..., Detection]


@pytest.fixture
def detect() -> Detect:
    """Decide the causes of a slow step from the traces of a folder or the files named, and whatever else there is."""

    def run(*paths: Path, **more: object) -> Detection:
        files = [file for path in paths for file in (sorted(path.rglob("*.json*")) if path.is_dir() else [path])]
        evidence = Evidence(root=Path("/"), limits=Limits(), **more)  # type: ignore[arg-type]
        evidence.files["trace"] = [TraceFile(file, file.name, None, evidence.limits) for file in files]
        findings, measures = decide(Registry(CAUSES), evidence, lambda text: None)
        assert not [problem for problem in evidence.problems if problem.kind == "cause"]
        return Detection(findings, measures)

    return run
