"""What the run folder of a short run says."""

from pathlib import Path

import pytest

from diagnostics.contract.artifacts import Failure, RunPaths, Status, write_json
from dtk.tune.probe import _read, terms


@pytest.mark.parametrize(
    ("state", "reason", "memory"),
    [
        ("oom", "OutOfMemoryError: CUDA out of memory", True),
        ("failed", "MemoryError: ", True),
        ("failed", "RuntimeError: std::bad_alloc", True),
        ("failed", "killed by SIGKILL (the kernel does this when memory runs out: see dmesg)", True),
        ("failed", "ValueError: bad batch", False),
        ("hung", "rank 1 waits", False),
        ("preempted", "stopped by a signal", False),
        ("finished", "", False),
    ],
)
def test_memory_is_told_by_the_status_of_the_run(tmp_path: Path, state: str, reason: str, memory: bool) -> None:
    paths = RunPaths(tmp_path / "run")
    failure = Failure(rank=1, reason=reason) if state in ("oom", "failed", "hung") else None
    write_json(paths.status, Status(state=state, reason="", failure=failure))  # type: ignore[arg-type]
    figures = {"tokens_per_s": 12.5, "peak_memory_bytes_per_rank": [3, 7, 5]}
    write_json(paths.summary, {"figures": figures})
    made = _read(paths.root)
    assert made.out_of_memory is memory
    assert made.fits is (state == "finished")
    assert (made.tokens_per_s, made.peak_memory_bytes) == (12.5, 7)


def test_a_short_run_fits_every_schedule() -> None:
    assert "schedule.warmup_steps=10" in terms(10, "wsd")
    assert not any(text.startswith("schedule") for text in terms(10, "cosine"))
