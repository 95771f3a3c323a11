from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import text_of
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import ddp
from tests.unit.diagnostics.causes.overlap.helpers import dtk_run, finding_of


@pytest.mark.parametrize("compiled", [False, True])
def test_a_compiled_model_is_not_told_to_compile(tmp_path: Path, detect: Any, compiled: bool) -> None:
    sim = Simulator(launch_us=900.0)
    if compiled:
        sim.kernel(20.0, "triton_poi_fused_add_relu_0")
    write(ddp(sim, transfer=1500.0), tmp_path)
    (remedy,) = text_of(finding_of(detect(tmp_path), "overlap.host_bound")).remedies
    assert remedy.change.startswith("`torch.compile` the model") == (not compiled)
    assert ("already compiled" in remedy.why) == compiled


def test_a_run_that_compiles_is_not_told_to_compile(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(launch_us=900.0), transfer=1500.0), tmp_path)
    finding = finding_of(detect(tmp_path, run=dtk_run({"train": {"compile": True}})), "overlap.host_bound")
    (remedy,) = text_of(finding).remedies
    assert "train.compile" not in remedy.change and "CUDA graphs" in remedy.change
