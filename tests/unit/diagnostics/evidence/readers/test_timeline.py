"""Timelines of dtk: long files stay small in memory and keep their peaks; growth is told from warm-up."""

import json
import random
from pathlib import Path

import pytest

from diagnostics.evidence.limits import Limits, head
from diagnostics.evidence.readers import telemetry
from diagnostics.evidence.readers.timeline import (
    MAX_POINTS,
    MAX_STEPS,
    TimelineFile,
    recognise,
    thinned,
)
from tests.unit.diagnostics.causes.memory.jobs import confirmed, findings

MIB = 1 << 20


def rank_file(folder: Path, allocated: list[int] | None, resident: list[int], rank: int = 0) -> Path:
    path = folder / f"rank_{rank:05d}.jsonl"
    with path.open("w") as file:
        for step, rss in enumerate(resident, 1):
            record = {"step": step, "time_s": 1e9 + step, "rss_bytes": rss, "peak_rss_bytes": rss}
            if allocated:
                size = allocated[step - 1]
                record |= {"allocated_bytes": size, "peak_allocated_bytes": size, "reserved_bytes": size + MIB,
                           "peak_reserved_bytes": size + MIB, "allocation_retries": 0}  # fmt: skip
            file.write(json.dumps(record) + "\n")
    return path


def load(path: Path):
    return TimelineFile(path, path.name, 0, Limits()).load()


def test_a_long_file_is_thinned_and_keeps_first_and_last(tmp_path):
    path = rank_file(tmp_path, None, [step * MIB for step in range(1, 20_001)])
    assert recognise(head(path))
    steps = load(path).steps
    assert len(steps) <= MAX_STEPS + 1
    assert (steps[0].step, steps[-1].step) == (1, 20_000)


def test_a_file_of_one_of_many_ranks_keeps_few_steps_and_the_highest(tmp_path):
    path = rank_file(tmp_path, [(900 if n == 7777 else 5) * MIB for n in range(20_000)], [MIB] * 20_000)
    steps = TimelineFile(path, path.name, 0, Limits()).load(64).steps
    assert len(steps) <= 66
    assert [step.step for step in steps] == sorted(step.step for step in steps)
    assert max(step.allocated_bytes or 0 for step in steps) == 900 * MIB
    assert steps[-1].step == 20_000


def test_thinning_keeps_peaks():
    points = [(n, 5) for n in range(100_000)]
    points[77_777] = (77_777, 9000)
    kept = thinned(points, MAX_POINTS)
    assert len(kept) <= MAX_POINTS
    assert (77_777, 9000) in kept


def test_torn_lines_are_counted_and_nothing_else_is_lost(tmp_path):
    path = rank_file(tmp_path, None, [MIB] * 10)
    path.write_text(path.read_text() + '{"step": 11, "time_s": 1')
    timeline = load(path)
    assert (len(timeline.steps), timeline.damaged) == (10, 1)


def test_a_new_attempt_in_the_same_file_counts_alone(tmp_path):
    path = rank_file(tmp_path, None, [MIB] * 10)
    first = path.read_text()
    path.write_text(first + first)
    assert [step.step for step in load(path).steps] == list(range(1, 11))


def test_telemetry_has_the_devices_and_the_hosts_memory(tmp_path):
    path = tmp_path / "node_00000.jsonl"
    about = {"kind": "about", "schema_version": 1, "time_s": 1.0, "host": "a", "cores": 8, "every_s": 1.0, "gpu": []}
    lines = [about]
    for n in range(5000):
        gpu = [{"memory_used_bytes": n, "memory_total_bytes": 80 << 30}]
        host = {"memory_used_bytes": n, "memory_total_bytes": 9999, "rank_rss_bytes": {"0": n, "1": 2}}
        lines.append({"kind": "sample", "time_s": float(n), "gpu": gpu, "host": host})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert telemetry.recognise(head(path))
    assert not recognise(head(path))
    timeline = load(path)
    assert timeline.devices[0].peak_bytes == 4999
    assert timeline.devices[0].total_bytes == 80 << 30
    assert len(timeline.devices[0].curve) <= MAX_POINTS
    assert max(size for _, size in timeline.rank_rss[0]) == 4999
    assert timeline.host_total_bytes == 9999


def noisy(size: float) -> int:
    return int(size + random.uniform(-2, 2) * MIB)


@pytest.mark.parametrize("steps", [24, 300])
def test_steady_growth_of_the_allocator_is_a_leak(tmp_path, steps):
    random.seed(0)
    rank_file(tmp_path, [noisy(1000 * MIB + step * 10 * MIB) for step in range(steps)], [MIB] * steps)
    result = findings(tmp_path)
    assert confirmed(result) == ["leak"]
    per_step = result["leak"].cost.value / 100
    assert per_step == pytest.approx(10 * MIB, rel=0.05)


@pytest.mark.parametrize(
    "curve",
    [
        lambda step: 1000 * MIB,
        lambda step: 1000 * MIB + min(step, 20) * 50 * MIB,  # warm-up
        lambda step: 1000 * MIB + (step % 10) * 30 * MIB,  # saw tooth
        lambda step: 1000 * MIB + (400 * MIB if step > 150 else 0),  # one jump, as an evaluation makes
    ],
)
def test_what_does_not_grow_for_ever_is_no_leak(tmp_path, curve):
    random.seed(1)
    rank_file(tmp_path, [noisy(curve(step)) for step in range(300)], [MIB] * 300)
    assert "leak" not in confirmed(findings(tmp_path))


def test_the_process_alone_must_grow_longer_and_more(tmp_path):
    rank_file(tmp_path, None, [400 * MIB + step * MIB for step in range(30)])
    assert "leak" not in confirmed(findings(tmp_path))
    rank_file(tmp_path, None, [400 * MIB + step * 5 * MIB for step in range(200)])
    assert confirmed(findings(tmp_path)) == ["leak"]


HONEST = b'{"step": 1, "time_s": 1.0, "rss_bytes": 1048576, "peak_rss_bytes": 1048576}\n' * 3
DAMAGED = b'{"step": "one", "rss_bytes": 1}\n'
