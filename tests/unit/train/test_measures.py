"""Speed of a window of steps: pauses are not in it, and MFU comes with its reason where it is unknown."""

import time

import pytest

from dtk.train.progress import Measures


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
