"""Figures: medians without warm-up, intervals over repeats, ratios, scaling, energy, out of memory marked."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dtk.compare.compare import Options, compare
from dtk.compare.model import Cell, Comparison
from dtk.compare.report import grid, headline, runs_text
from tests.unit.compare.folders import GATHERED, START_S, as_markdown, as_page, in_pipe, make_run

FSDP = {"strategy": {"name": "fsdp"}}


def cell(found: Comparison, key: str, variant: str) -> Cell:
    return next(c for figure in found.figures if figure.key == key for c in figure.cells if c.variant == variant)


def median(found: Comparison, key: str, variant: str) -> float:
    estimate = cell(found, key, variant).estimate
    assert estimate is not None
    return estimate.median


def test_the_warm_up_does_not_count(tmp_path: Path) -> None:
    times = [9.0, 5.0, *[0.1] * 10]
    runs = [make_run(tmp_path, "a", times_s=times), make_run(tmp_path, "b", change=FSDP)]
    found = compare(runs)
    assert median(found, "step_time_s", "ddp") == 0.1
    assert median(found, "tokens_per_s", "ddp") == pytest.approx(8 * 128 / 0.1)
    assert compare(runs, Options(warmup_steps=0)).figures[0].cells[0].estimate is not None
    assert median(compare(runs, Options(warmup_steps=11)), "step_time_s", "ddp") == 0.1
    assert any("first 2 steps" in note for note in found.notes)


def test_windows_that_reach_into_the_warm_up_do_not_count_either(tmp_path: Path) -> None:
    times = [9.0, 5.0, *[0.3] * 3, *[0.1] * 7]
    runs = [make_run(tmp_path, "a", times_s=times, log_every=5), make_run(tmp_path, "b", change=FSDP)]
    assert median(compare(runs), "step_time_s", "ddp") == pytest.approx(0.1)


def test_steps_under_the_profiler_do_not_count(tmp_path: Path) -> None:
    """Steps 3 and 4 are recorded, and step 5 begins with writing the trace."""
    times = [1.0, 1.0, 3.0, 3.0, 7.0, *[0.1] * 3, *[0.2] * 4]
    full = {"record": {"level": "full", "profile_start": 3, "profile_steps": 2}}
    found = compare([make_run(tmp_path, "a", times_s=times, change=full), make_run(tmp_path, "b", change=FSDP)])
    assert median(found, "step_time_s", "ddp record=full") == pytest.approx(0.2)
    assert any("different levels" in note for note in found.notes)


def test_repeats_are_one_variant_with_an_interval_and_a_ratio(tmp_path: Path) -> None:
    runs = []
    for n, (ours, theirs) in enumerate(((0.100, 0.131), (0.104, 0.136), (0.098, 0.128))):
        runs.append(make_run(tmp_path, f"d{n}", times_s=ours, minute=2 * n))
        runs.append(make_run(tmp_path, f"f{n}", times_s=theirs, change=FSDP, traffic=GATHERED, minute=2 * n + 1))
    found = compare(runs)
    assert [(one.label, len(one.runs)) for one in found.variants] == [("ddp", 3), ("fsdp", 3)]
    ratio = cell(found, "step_time_s", "fsdp").ratio
    assert ratio is not None
    assert ratio.median == pytest.approx(1.31, abs=0.005)
    assert ratio.low is not None
    assert ratio.high is not None
    assert 1.2 < ratio.low < 1.31 < ratio.high < 1.4
    (verdict,) = found.verdicts
    assert "fsdp is 1.31x slower than ddp (1." in verdict
    assert "24 all_gathers of about 28 MiB" in verdict
    assert "instead of 2 all_reduces of about 2 MiB" in verdict
    assert "4 bytes" not in verdict  # Every strategy agrees on norms and the like.
    assert "ddp needs 400 MiB and avoids the all_gathers and reduce_scatters" in verdict
    assert headline(found).endswith("ddp is the fastest")


def test_what_noise_explains_is_no_verdict(tmp_path: Path) -> None:
    runs = []
    for n, (ours, theirs) in enumerate(((0.10, 0.12), (0.14, 0.11), (0.09, 0.13))):
        runs.append(make_run(tmp_path, f"d{n}", times_s=ours, minute=2 * n))
        runs.append(make_run(tmp_path, f"f{n}", times_s=theirs, change=FSDP, minute=2 * n + 1))
    (verdict,) = compare(runs).verdicts
    assert "cannot be told from ddp" in verdict
    assert "within noise" in verdict


def test_single_runs_whose_steps_overlap_are_not_told_apart(tmp_path: Path) -> None:
    uneven = [0.1, 0.1, *[0.08, 0.14] * 5]
    runs = [make_run(tmp_path, "a", times_s=uneven), make_run(tmp_path, "b", times_s=0.13, change=FSDP)]
    found = compare(runs)
    assert "their steps overlap" in found.verdicts[0]
    assert cell(found, "step_time_s", "ddp").spread == pytest.approx((0.08, 0.14))
    (few,) = (note for note in found.notes if note.startswith("fewer than 3 repeats of ddp and fsdp"))
    assert "too few for an interval" in few


def test_a_long_name_in_front_of_a_bar_is_whole(tmp_path: Path) -> None:
    """It is text beside the drawing, which folds where it has no room."""
    name = "a_strategy_with_a_name_that_has_no_end"
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change={"strategy": {"name": name}})]
    drawn = as_page(compare(runs)).split("<h2>Throughput</h2>")[1].split("</section>")[0]
    assert f"<span>{name}</span>" in drawn and f"<title>{name}: " in drawn


def test_repeats_one_after_another_are_told(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"d{n}", minute=n) for n in range(3)]
    runs += [make_run(tmp_path, f"f{n}", change=FSDP, minute=10 + n) for n in range(3)]
    assert any("not in turns" in note for note in compare(runs).notes)


def test_scaling_with_the_batch_kept_and_with_the_batch_growing(tmp_path: Path) -> None:
    strong = [make_run(tmp_path, f"s{n}", world_size=n, times_s=0.4 / n * (1 + 0.25 * (n > 1))) for n in (1, 2, 4)]
    found = compare(strong)
    assert [(one.kind, one.world_size) for one in found.scaling] == [("strong", 1), ("strong", 2), ("strong", 4)]
    assert [one.efficiency for one in found.scaling] == pytest.approx([1.0, 0.8, 0.8])
    weak = [
        make_run(tmp_path, f"w{n}", world_size=n, times_s=0.1 * n, change={"train.global_batch_size": 8 * n})
        for n in (1, 2)
    ]
    grown = compare(weak)
    assert grown.fair
    assert [(one.kind, one.efficiency) for one in grown.scaling] == [("weak", 1.0), ("weak", pytest.approx(0.5))]


def test_strategies_by_batches_with_out_of_memory_marked(tmp_path: Path) -> None:
    runs = []
    for batch in (8, 16):
        for strategy in ("ddp", "fsdp"):
            change: dict[str, Any] = {"strategy": {"name": strategy}, "train.global_batch_size": batch}
            died = (strategy, batch) == ("ddp", 16)
            runs.append(
                make_run(
                    tmp_path,
                    f"{strategy}{batch}",
                    change=change,
                    times_s=[] if died else 0.1,
                    state="oom" if died else "finished",
                    reason="rank 0: CUDA out of memory" if died else "",
                )
            )
    runs.append(make_run(tmp_path, "zero1", change={"strategy": {"name": "zero1"}, "train.global_batch_size": 16}))
    found = compare(runs)
    assert found.fair
    rows = {row[0]: row[1:] for row in grid(found)}
    assert rows["step time, memory"] == ("batch 8", "batch 16")
    assert rows["ddp"] == ("100 ms, 400 MiB", "OOM")
    assert rows["fsdp"] == ("100 ms, 400 MiB", "100 ms, 400 MiB")
    assert rows["zero1"] == ("-", "100 ms, 400 MiB")
    assert any("CUDA out of memory" in note for note in found.notes)
    text = in_pipe(found)
    assert "OOM" in text
    assert "OOM" in as_markdown(found)


def test_runs_without_steps_are_shown_and_not_compared(tmp_path: Path) -> None:
    died = make_run(tmp_path, "a", times_s=[], state="failed", reason="rank 1: ValueError: bad batch")
    found = compare([died, make_run(tmp_path, "b", change=FSDP)])
    assert [runs_text(one) for one in found.variants] == ["FAILED", "1"]
    assert not found.verdicts
    assert "only fsdp has figures" in headline(found)
    half = make_run(tmp_path, "c", times_s=[0.1] * 6, state="hung")
    assert [one.outcome for one in compare([half, tmp_path / "b"]).variants] == ["hung", ""]
    assert headline(compare([died, half])) == "no run has steps to compare"


def telemetry(folder: Path, *samples: dict[str, Any]) -> None:
    (folder / "telemetry").mkdir()
    lines = [{"kind": "about", "schema_version": 1}]
    lines += [{"kind": "sample", "time_s": START_S + 0.3 * (n + 1), **one} for n, one in enumerate(samples)]
    (folder / "telemetry" / "node_00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_energy_throttling_and_clocks_come_from_the_telemetry(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a", gpu="H100"), make_run(tmp_path, "b", change=FSDP, gpu="H100")]
    for run, mhz, reasons in ((runs[0], 1980, ["hardware_thermal"]), (runs[1], 1500, [])):
        devices = [
            {"uuid": f"GPU-{i}", "index": i, "sm_clock_mhz": mhz, "throttle_reasons": reasons, "energy_joules": 1e6}
            for i in range(2)
        ]
        samples = [{"gpu": [{**one, "energy_joules": 1e6 + 300 * 0.3 * n} for one in devices]} for n in range(4)]
        telemetry(run, *samples)
    found = compare(runs)
    # Two devices of 300 W for a step of 0.1 s.
    assert median(found, "energy_j", "ddp") == pytest.approx(60.0)
    notes = " ".join(found.notes)
    assert "a device was throttled in 1 run: ddp GPU 0: hardware_thermal in 100 % of the samples" in notes
    assert "did not run at the same clocks" in notes


def test_neighbours_on_a_busy_cpu_are_told_and_those_on_an_idle_one_not(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", change=FSDP)]
    telemetry(runs[0], *[{"gpu": None, "host": {"cpu_percent": 99.0, "others_cpu_percent": 34.0}}] * 3)
    telemetry(runs[1], *[{"gpu": None, "host": {"cpu_percent": 50.0, "others_cpu_percent": 34.0}}] * 3)
    told = [note for note in compare(runs).notes if note.startswith("disturbed")]
    assert told == ["disturbed: other processes used the CPU in 1 run: ddp 34 % of it (a)"]


def test_nothing_is_said_of_samples_outside_the_measured_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    telemetry(run, {"gpu": None, "host": {"cpu_percent": 99.0, "others_cpu_percent": 90.0}})
    text = (run / "telemetry" / "node_00000.jsonl").read_text().replace(str(START_S + 0.3), str(START_S - 60))
    (run / "telemetry" / "node_00000.jsonl").write_text(text)
    found = compare([run, make_run(tmp_path, "b", change=FSDP)])
    assert not any(note.startswith("disturbed") for note in found.notes)


def test_every_figure_is_finite(tmp_path: Path) -> None:
    found = compare([make_run(tmp_path, "a", times_s=1e-9), make_run(tmp_path, "b", times_s=1e9, change=FSDP)])
    for figure in found.figures:
        for one in figure.cells:
            assert one.estimate is None or math.isfinite(one.estimate.median)
    assert "1,000,000" in found.verdicts[0]
