from pathlib import Path

from diagnostics.causes.registry import Registry
from diagnostics.diagnose import decide
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.readers.nsys import NsysFile
from tests.shared_data import shared_data
from tests.unit.diagnostics.causes.overlap.conftest import CAUSES


def test_collectives_on_the_compute_stream_of_a_real_export_are_found() -> None:
    path = shared_data("traces/nsys_2gpu_h100/mfu_2gpu_before.sqlite")
    evidence = Evidence(root=Path("/"), limits=Limits(), files={"nsys": [NsysFile(path, path.name, None, Limits())]})
    findings, _ = decide(Registry(CAUSES), evidence, lambda text: None)
    assert [finding.cause for finding in findings if finding.status == "confirmed"] == ["overlap.same_stream"]
