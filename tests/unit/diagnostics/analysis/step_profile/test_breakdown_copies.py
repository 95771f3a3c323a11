"""Copies between host and device: how much, from which memory, how well hidden, and in which annotation."""

from pathlib import Path

from diagnostics.analysis.step_profile.breakdown import CopyProfile, Covers, copy_profiles
from diagnostics.analysis.step_profile.classify import classify
from tests.trace_generator import Simulator
from tests.unit.diagnostics.analysis.step_profile.profiles import traces

TO_DEVICE, TO_HOST = "HtoD (Pageable -> Device)", "DtoH (Device -> Pinned)"


def copies(folder: Path, simulator: Simulator) -> list[CopyProfile]:
    (trace,) = traces(simulator, folder)
    work = classify(trace)
    return copy_profiles(trace, work, Covers(work))


def test_copies_by_direction_and_memory_the_costliest_first(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    sim.kernel(100.0)
    with sim.marked("prepare batch"):
        sim.copy(300.0, 1000, TO_DEVICE)
        sim.copy(200.0, 500, TO_DEVICE)
    sim.copy(50.0, 100, TO_HOST)
    first, second = copies(tmp_path, sim)
    assert (first.kind.to_device, first.kind.memory, first.count, first.size_bytes) == (True, "pageable", 2, 1500)
    assert first.duration == 500_000 and first.within == "prepare batch"
    assert (second.kind.to_device, second.kind.memory, second.count, second.within) == (False, "pinned", 1, "")
    assert first.exposed >= second.exposed > 0


def test_copies_within_the_device_and_traces_without_any(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    sim.kernel(100.0)
    assert copies(tmp_path / "none", sim) == []
    sim.copy(300.0, 1000, "DtoD (Device -> Device)")
    assert copies(tmp_path / "inside", sim) == []
