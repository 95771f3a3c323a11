"""What the run folder of a short run says."""

from pathlib import Path

import pytest

from diagnostics.contract.artifacts import Failure, RunPaths, Status, write_json
from dtk.tune.probe import _read, terms


@pytest.mark.parametrize(
    ("state", "failure", "memory"),
    [
        ("oom", Failure(1, "OutOfMemoryError: CUDA out of memory", kind="oom"), True),
        ("failed", Failure(1, "exited with code 1: MemoryError: ", kind="oom", type="MemoryError"), True),
        ("failed", Failure(1, "killed by SIGKILL", kind="killed", signal="SIGKILL", exit_code=-9), True),
        ("failed", Failure(1, "ValueError: bad batch", kind="raised", type="ValueError"), False),
        ("failed", Failure(1, "killed by SIGSEGV", kind="killed", signal="SIGSEGV"), False),
        ("hung", Failure(-1, "rank 1 waits"), False),
        ("preempted", None, False),
        ("finished", None, False),
    ],
)
def test_memory_is_told_by_the_status_of_the_run(
    tmp_path: Path, state: str, failure: Failure | None, memory: bool
) -> None:
    paths = RunPaths(tmp_path / "run")
    write_json(paths.status, Status(state=state, reason="", failure=failure))  # type: ignore[arg-type]
    figures = {"tokens_per_s": 12.5, "peak_memory_bytes_per_rank": [3, 7, 5]}
    write_json(paths.summary, {"figures": figures})
    probe = _read(paths.root)
    assert probe.out_of_memory is memory
    assert probe.fits is (state == "finished")
    assert probe.reason == (failure.reason if failure else "")
    assert (probe.tokens_per_s, probe.peak_memory_bytes) == (12.5, 7)


def test_a_short_run_fits_every_schedule() -> None:
    assert "schedule.warmup_steps=10" in terms(10, "wsd")
    assert not any(text.startswith("schedule") for text in terms(10, "cosine"))
