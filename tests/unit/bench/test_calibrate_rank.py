"""What one rank of a calibration times: how often, on how much, and what it makes of the times."""

import itertools

import torch

from dtk.bench import calibrate_rank
from tests.unit.train.conftest import alone  # noqa: F401


def test_the_median_of_as_many_runs_as_the_budget_allows(monkeypatch):
    clock, times = itertools.count(), iter([9.0, 1.0, 5.0, 3.0, 2.0])
    monkeypatch.setattr(calibrate_rank.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(calibrate_rank, "timed_s", lambda run, device: next(times))
    assert calibrate_rank._median_s("cpu", 3.0, list) == 3.0, "the first run warms up"
    assert next(times) == 2.0


def test_slow_products_get_fewer_rows_and_flops_count_both_operations(monkeypatch):
    monkeypatch.setitem(calibrate_rank.WIDTH, "cpu", 16)
    monkeypatch.setitem(calibrate_rank.ROWS, "cpu", 64)
    monkeypatch.setattr(calibrate_rank, "timed_s", lambda run, device: (run(), 1.0)[1])
    rows = []
    monkeypatch.setattr(
        calibrate_rank, "_median_s", lambda device, budget_s, run: (rows.append(run().shape[0]), 2.0)[1]
    )
    assert calibrate_rank.matmul_flops("cpu", "float32", torch.float32, 8.0) == 2 * 16 * 16 * 16 / 2.0
    assert rows == [16], "8 rows take a second, and a quarter of the budget is two"


def test_a_copy_reads_and_writes(monkeypatch):
    monkeypatch.setitem(calibrate_rank.COPIED_BYTES, "cpu", 4096)
    monkeypatch.setattr(calibrate_rank, "_median_s", lambda device, budget_s, run: (run(), 0.5)[1])
    assert calibrate_rank.copy_bytes_per_s("cpu", 1.0) == 2 * 4096 / 0.5


def test_every_size_is_reduced_at_least_three_times(alone, monkeypatch):  # noqa: F811
    monkeypatch.setattr(calibrate_rank, "SIZES_BYTES", (1024, 4096))
    times = calibrate_rank.all_reduce_s("cpu", 0.0)
    assert list(times) == ["1024", "4096"] and all(len(seconds) == 3 and min(seconds) > 0 for seconds in times.values())
