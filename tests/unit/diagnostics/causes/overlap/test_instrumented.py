from pathlib import Path
from typing import Any

import pytest

from tests.trace_generator import write
from tests.trace_scenarios import fsdp
from tests.unit.diagnostics.causes.overlap.helpers import roots


@pytest.mark.parametrize("name", ["TORCH_NCCL_ENABLE_TIMING", "CUDA_LAUNCH_BLOCKING"])
def test_an_instrument_in_the_environment_is_refused(tmp_path: Path, detect: Any, name: str) -> None:
    write(fsdp(units=1), tmp_path)
    detection = detect(tmp_path, environment={-1: {name: "1"}})
    assert roots(detection) == [("overlap.instrumented", (0, 1, 2, 3))]
    assert {one.status for one in detection.findings if one.cause != "overlap.instrumented"} == {"undecided"}
    assert roots(detect(tmp_path, environment={-1: {name: "0"}})) == [("overlap.root_only_wrapping", (0, 1, 2, 3))]
