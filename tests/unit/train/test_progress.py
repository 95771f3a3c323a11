"""The line of a logged step, times as people say them, and the speed of a window of steps without pauses."""

import io
import time
from typing import Any

import pytest

from dtk.parallel.regions import Region
from dtk.train.progress import Measures, Progress, human_time, print_line, printing_elapsed

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


def measures(peak: float | None = None) -> Measures:
    return Measures(1000, 6000, 2, peak, "unknown device" if peak is None else "data sheet", 64)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test sets: nothing here is about the speed of this machine."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_a_window_is_divided_by_its_steps_without_pauses(clock: list[float]) -> None:
    speed = measures()
    speed.start(10)
    clock[0] += 3.0
    with speed.paused():
        clock[0] += 50.0
    clock[0] += 1.0
    window = speed.window(14)
    assert window["step_time_s"] == pytest.approx(1.0) and window["tokens_per_s"] == pytest.approx(1000.0)
    assert window["tokens"] == 14_000 and window["communicated_bytes_per_step"] == 64
    clock[0] += 2.0
    assert speed.window(15)["step_time_s"] == pytest.approx(2.0), "the next one begins where this one ended"


def test_mfu_is_of_all_ranks_peak(clock: list[float]) -> None:
    speed = measures(peak=6e6)
    speed.start()
    clock[0] += 1.0
    assert speed.window(1)["mfu"] == pytest.approx(6000 * 1000 / (2 * 6e6))


def test_without_a_peak_there_is_a_reason_and_no_guess(clock: list[float]) -> None:
    speed = measures()
    speed.start()
    window = speed.window(0)
    assert window["mfu"] is None and window["mfu_reason"] and window["step_time_s"] > 0
