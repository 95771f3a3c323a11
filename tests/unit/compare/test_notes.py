"""Notes beside the figures."""

from pathlib import Path
from typing import Any

from dtk.compare.compare import compare
from dtk.compare.model import Doubt
from tests.unit.compare.folders import FSDP, make_run


def test_repeats_one_after_another_are_told(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"d{n}", minute=n) for n in range(3)]
    runs += [make_run(tmp_path, f"f{n}", change=FSDP, minute=10 + n) for n in range(3)]
    assert any("not in turns" in note for note in compare(runs).notes)


def notes(tmp_path: Path, *runs: dict[str, Any]) -> list[str]:
    return list(compare([make_run(tmp_path, f"r{n}", **run) for n, run in enumerate(runs)]).notes)


def test_what_was_not_recorded_is_listed_with_the_reason(tmp_path: Path) -> None:
    (note,) = (note for note in notes(tmp_path, {}, {"change": FSDP, "parity": {}}) if note.startswith("not checked"))
    assert "initial weights (hash) (not recorded by fsdp)" in note and "master weights" in note


def test_runs_that_are_not_compared_are_named_with_their_state(tmp_path: Path) -> None:
    texts = notes(
        tmp_path,
        {},
        {"change": FSDP},
        {
            "change": {"strategy": {"name": "zero1"}},
            "state": "oom",
            "times_s": [],
            "reason": "rank 0: CUDA out of memory",
        },
        {"change": {"strategy": {"name": "dp"}}, "state": "running", "times_s": [0.1] * 2},
        {"change": {"strategy": {"name": "hsdp"}}, "state": "running"},
    )
    assert "not compared: zero1 (r2), oom: rank 0: CUDA out of memory" in texts
    assert "not compared: dp (r3), no measured steps" in texts
    assert "hsdp (r4) is running: its figures are those of the steps so far" in texts


def test_unlike_machines_levels_and_casts_are_told(tmp_path: Path) -> None:
    bf16 = {"precision": {"name": "bf16", "compute_dtype": "bfloat16"}}
    texts = notes(
        tmp_path,
        {"change": bf16, "gpu": "H100"},
        {"change": {**bf16, **FSDP, "record.level": "off"}, "gpu": "A100"},
    )
    assert "devices differ: ddp record=light: H100; fsdp record=off: A100" in texts
    assert any(note.startswith("recorded at different levels") for note in texts)
    assert any("the sharded strategies cast whole units" in note for note in texts)


def test_repeats_that_vary_are_unsteady(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"d{n}", times_s=time_s, minute=n) for n, time_s in enumerate((0.1, 0.2, 0.4))]
    (note,) = (note for note in compare(runs).notes if note.startswith("unsteady"))
    assert isinstance(note, Doubt) and "ddp" in note
    steady = [make_run(tmp_path, f"s{n}", times_s=0.1 + n / 1000, minute=n) for n in range(3)]
    assert not any(note.startswith("unsteady") for note in compare(steady).notes)


def test_alternating_repeats_are_not_told_to_have_drifted(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"d{n}", minute=2 * n) for n in range(3)]
    runs += [make_run(tmp_path, f"f{n}", change=FSDP, minute=2 * n + 1) for n in range(3)]
    assert not any("not in turns" in note for note in compare(runs).notes)
