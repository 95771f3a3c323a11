from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from tests.shared_data import shared_data
from tests.trace_generator import Simulator, Style, write
from tests.trace_scenarios import ddp
from tests.unit.diagnostics.causes.overlap.helpers import dtk_run, finding_of, roots, status

MIB = 1 << 20


@pytest.mark.parametrize(
    ("kind", "words", "remedy"),
    [
        ("HtoD (Pageable -> Device)", "from the host to the device (pageable memory", "pin_memory=True"),
        ("HtoD (Pinned -> Device)", "from the host to the device (pinned memory", "a separate stream"),
        ("DtoH (Device -> Pageable)", "from the device to the host (pageable memory", "into a pinned tensor"),
        ("DtoH (Device -> Pinned)", "from the device to the host (pinned memory", "keep the values on the device"),
        ("HtoD (Host -> Device)", "from the host to the device (3 transfers", "a separate stream"),
    ],
)
def test_direction_memory_size_and_rate_are_named(
    tmp_path: Path, detect: Any, kind: str, words: str, remedy: str
) -> None:
    sim = Simulator()
    write(ddp(sim, per_step=lambda: sim.copy(5000.0, 50 * MIB, kind)), tmp_path)
    detection = detect(tmp_path)
    assert roots(detection) == [("overlap.copies", (0, 1, 2, 3))]
    finding = finding_of(detection, "overlap.copies")
    text = text_of(finding)
    assert words in text.summary and "3 transfers of 50 MiB on average at 10.5 GB/s" in text.summary
    assert remedy in text.remedies[0].change
    assert finding.cost is not None and finding.cost.value == pytest.approx(5.0, rel=0.1)


def test_copies_beside_compute_cost_nothing(tmp_path: Path, detect: Any) -> None:
    """The next batch is copied on a stream of its own while this one computes."""
    sim = Simulator()

    def prefetch() -> None:
        before = [(clock.compute, clock.host) for clock in sim.clocks]
        sim.copy(2000.0, 50 * MIB, "HtoD (Pinned -> Device)")
        for clock, (compute, _) in zip(sim.clocks, before):
            clock.compute = compute

    write(ddp(sim, per_step=prefetch), tmp_path)
    assert status(detect(tmp_path))["overlap.copies"] == "ruled_out"


def test_copies_within_a_device_are_no_copies_of_this_cause(tmp_path: Path, detect: Any) -> None:
    sim = Simulator()
    write(ddp(sim, per_step=lambda: sim.copy(5000.0, 50 * MIB, "DtoD (Device -> Device)")), tmp_path)
    assert status(detect(tmp_path))["overlap.copies"] == "ruled_out"


def test_sizes_may_be_missing_or_strings(tmp_path: Path, detect: Any) -> None:
    """Old profilers leave them out, and ROCm's writes them as strings."""
    sim = Simulator()
    ddp(sim, per_step=lambda: sim.copy(5000.0, 50 * MIB))
    for events in sim.events:
        for event in events:
            if "bytes" in event["args"]:
                event["args"]["bytes"] = str(event["args"]["bytes"])
    write(sim, tmp_path / "strings")
    assert "50 MiB" in text_of(finding_of(detect(tmp_path / "strings"), "overlap.copies")).summary
    write(sim, tmp_path / "old", Style(old=True))
    finding = finding_of(detect(tmp_path / "old"), "overlap.copies")
    assert finding.status == "confirmed" and "3 transfers)" in text_of(finding).summary


def test_where_the_copies_are_issued_is_named(tmp_path: Path, detect: Any) -> None:
    sim = Simulator()

    def load() -> None:
        with sim.marked("## copy_batch_to_gpu ##"):
            sim.copy(5000.0, 50 * MIB)

    write(ddp(sim, per_step=load), tmp_path)
    assert "issued in ## copy_batch_to_gpu ##" in text_of(finding_of(detect(tmp_path), "overlap.copies")).summary


def test_a_run_that_offloads_is_told_not_to(tmp_path: Path, detect: Any) -> None:
    sim = Simulator()
    write(ddp(sim, per_step=lambda: sim.copy(5000.0, 50 * MIB, "HtoD (Pinned -> Device)")), tmp_path)
    run = dtk_run({"strategy": {"name": "fsdp", "offload": "parameters"}})
    (remedy,) = text_of(finding_of(detect(tmp_path, run=run), "overlap.copies")).remedies
    assert (remedy.kind, remedy.change) == ("override", "strategy.offload=none")


def test_a_real_export_that_copies_all_the_time() -> None:
    """921 of 969 ms are copies of pinned memory to the device, 25 GB on each of two GPUs."""
    report = diagnose(shared_data("traces/nsys_h100_copies"))
    assert (report.outcome, report.root_causes[0].cause) == ("slow", "overlap.copies")
    text = text_of(report.root_causes[0])
    assert "pinned memory, 223 transfers of 109 MiB on average at 27.7 GB/s" in text.summary
    cost = report.root_causes[0].cost
    assert cost is not None and cost.value == pytest.approx(921, abs=3)
