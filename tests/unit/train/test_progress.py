"""The line of a logged step, and times as people say them."""

import io
import time
from typing import Any

import pytest

from dtk.parallel.regions import Region
from dtk.train.progress import Progress, human_time, print_line, printing_elapsed

RECORD: dict[str, Any] = {
    "step": 1, "loss": 2.5, "tokens_per_s": 4000.0, "mfu": None, "peak_memory_bytes": 3 * 2**30,
}  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (59.6, "1m 00s"), (200, "3m 20s"), (7500, "2h 05m")]
)
def test_times(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


def test_the_rest_is_told_from_the_second_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    progress = Progress(steps=11, world_size=1, first_step=0)
    assert progress.line(RECORD) == "step 1/11  loss 2.5000  tok/s 4,000  mfu n/a  mem 3.00 GiB  eta ?\r"
    now[0] = 16.0
    assert progress.line({**RECORD, "step": 3}).endswith("eta 24s"), "3 s a step, 8 steps left"


def test_ranks_units_and_bubbles() -> None:
    line = Progress(steps=9, world_size=4, first_step=5, unit="sample").line(
        {**RECORD, "step": 6, "mfu": 0.412, "pipeline_bubble": 0.31, "pipeline_bubble_ideal": 0.25}
    )
    assert "samples/s 4,000 (1,000/rank)" in line and "mfu 41.2%  bubble 31% (ideal 25%)" in line


def test_long_work_is_told_with_the_region_that_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with Region("forward"), printing_elapsed("compiling", on=True, every_s=0.01):
        while len(lines) < 2:
            lines += capsys.readouterr().out.splitlines()
    assert lines[0] == "compiling: 0s so far, rank 0 in forward"
    assert capsys.readouterr().out.count("compiling") <= 1, "it ends with the work"


def test_a_full_disk_costs_the_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stdout", Full())
    print_line("lost")
