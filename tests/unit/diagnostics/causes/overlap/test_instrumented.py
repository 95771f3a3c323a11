from pathlib import Path
from typing import Any

import pytest

from tests.trace_generator import Simulator, write
from tests.trace_scenarios import by_step, ddp, fsdp
from tests.unit.diagnostics.causes.overlap.helpers import roots, status


@pytest.mark.parametrize("name", ["TORCH_NCCL_ENABLE_TIMING", "CUDA_LAUNCH_BLOCKING"])
def test_an_instrument_in_the_environment_is_refused(tmp_path: Path, detect: Any, name: str) -> None:
    write(fsdp(units=1), tmp_path)
    detection = detect(tmp_path, environment={-1: {name: "1"}})
    assert roots(detection) == [("overlap.instrumented", (0, 1, 2, 3))]
    assert {finding.status for finding in detection.findings if finding.cause != "overlap.instrumented"} == {
        "undecided"
    }
    assert roots(detect(tmp_path, environment={-1: {name: "0"}})) == [("overlap.root_only_wrapping", (0, 1, 2, 3))]


def test_launches_that_block_are_told_by_the_launch_itself(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(blocking=True)), tmp_path)
    assert roots(detect(tmp_path)) == [("overlap.instrumented", (0, 1, 2, 3))]


def test_a_slow_host_is_no_instrument(tmp_path: Path, detect: Any) -> None:
    """Every kernel is over long before the next launch, as launching takes longer than computing."""
    write(ddp(Simulator(launch_us=900.0), transfer=1500.0), tmp_path)
    assert status(detect(tmp_path))["overlap.instrumented"] == "ruled_out"


def test_a_program_that_waits_after_every_kernel_is_no_instrument(tmp_path: Path, detect: Any) -> None:
    """It calls `item()` itself: the measurement shows what the job does without it as well."""
    sim = Simulator()

    def step() -> None:
        for _ in range(40):
            sim.kernel(300.0)
            sim.drain()
            sim.host(100.0)

    write(by_step(sim, step), tmp_path)
    texts = status(detect(tmp_path))
    assert (texts["overlap.instrumented"], texts["overlap.sync_point"]) == ("ruled_out", "confirmed")


@pytest.mark.parametrize(("request_us", "expected"), [(20_000.0, True), (500.0, False)])
def test_what_the_profiler_itself_takes_is_no_pause_of_the_program(
    tmp_path: Path, detect: Any, request_us: float, expected: bool
) -> None:
    """CUPTI requests a buffer for its events, and the launch in which that happens does not return until it has one."""
    sim = Simulator(ranks=1)

    def request() -> None:
        sim.drain("aten::mean")
        where = {"pid": -1, "tid": 0, "ts": sim.clocks[0].host, "dur": request_us, "args": {}}
        sim.events[0].append({"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", **where})
        sim.host(request_us)

    write(ddp(sim, per_step=request), tmp_path)
    detection = detect(tmp_path)
    assert roots(detection) == ([("overlap.instrumented", (0,))] if expected else [])
    texts = status(detection)
    assert texts["overlap.pause"] == texts["overlap.host_bound"] == "ruled_out"
