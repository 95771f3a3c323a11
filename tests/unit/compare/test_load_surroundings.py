"""What telemetry shows against the figures: throttling, neighbours, energy; only of the measured steps."""

from pathlib import Path

import pytest

from dtk.compare.compare import compare
from tests.unit.compare.folders import FSDP, START_S, make_run, median, telemetry


def test_energy_throttling_and_clocks_come_from_the_telemetry(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a", gpu="H100"), make_run(tmp_path, "b", change=FSDP, gpu="H100")]
    for run, mhz, reasons in ((runs[0], 1980, ["hardware_thermal"]), (runs[1], 1500, [])):
        devices = [
            {"uuid": f"GPU-{i}", "index": i, "sm_clock_mhz": mhz, "throttle_reasons": reasons, "energy_joules": 1e6}
            for i in range(2)
        ]
        samples = [{"gpu": [{**device, "energy_joules": 1e6 + 300 * 0.3 * n} for device in devices]} for n in range(4)]
        telemetry(run, *samples)
    comparison = compare(runs)
    # Two devices of 300 W for a step of 0.1 s.
    assert median(comparison, "energy_j", "ddp") == pytest.approx(60.0)
    notes = " ".join(comparison.notes)
    assert "a device was throttled in 1 run: ddp GPU 0: hardware_thermal in 100% of the samples" in notes
    assert "did not run at the same clocks" in notes


def test_neighbours_on_a_busy_cpu_are_told_and_those_on_an_idle_one_not(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change=FSDP)]
    telemetry(runs[0], *[{"gpu": None, "host": {"cpu_percent": 99.0, "others_cpu_percent": 34.0}}] * 3)
    telemetry(runs[1], *[{"gpu": None, "host": {"cpu_percent": 50.0, "others_cpu_percent": 34.0}}] * 3)
    notes = [note for note in compare(runs).notes if note.startswith("disturbed")]
    assert notes == ["disturbed: other processes used the CPU in 1 run: ddp 34% of it (a)"]


def test_nothing_is_said_of_samples_outside_the_measured_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    telemetry(run, {"gpu": None, "host": {"cpu_percent": 99.0, "others_cpu_percent": 90.0}})
    text = (run / "telemetry" / "node_00000.jsonl").read_text().replace(str(START_S + 0.3), str(START_S - 60))
    (run / "telemetry" / "node_00000.jsonl").write_text(text)
    comparison = compare([run, make_run(tmp_path, "b", change=FSDP)])
    assert not any(note.startswith("disturbed") for note in comparison.notes)
