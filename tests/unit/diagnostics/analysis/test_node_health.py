"""Health of nodes from telemetry: what was counted is a difference, what was seen is a share."""

import json
from pathlib import Path

from diagnostics.analysis.node_health import node_health
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits

GIB = 1 << 30


def sample(at_s: float, **host: object) -> dict[str, object]:
    return {"kind": "sample", "time_s": 1790000000.0 + at_s, "host": {"rank_rss_bytes": {"0": GIB, "1": GIB}, **host}}


def write(folder: Path, *samples: dict[str, object]) -> Path:
    lines = [{"kind": "about", "cores": 8, "every_s": 1.0}, *samples]
    (folder / "node_00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_counters_are_differences_over_the_time_that_was_watched(tmp_path: Path) -> None:
    first = sample(0, cgroup_periods=100, cgroup_throttled_periods=40, rank_core_wait_s={"0": 3.0, "1": None})
    last = sample(9, cgroup_periods=190, cgroup_throttled_periods=70, rank_core_wait_s={"0": 4.5, "1": 2.0})
    (node,) = node_health(gather(write(tmp_path, first, last), Limits()))
    assert (node.ranks, node.seconds, node.cores) == ((0, 1), 9.0, 8)
    assert (node.periods, node.throttled_periods) == (90, 30)
    assert node.core_waits_s == ((0, 1.5), (1, 0.0)), "one sample alone says nothing of a time"


def test_counters_that_began_anew_count_as_nothing(tmp_path: Path) -> None:
    (node,) = node_health(gather(write(tmp_path, sample(0, cgroup_periods=100), sample(5, cgroup_periods=3)), Limits()))
    assert node.periods == 0


def test_only_the_last_wait_for_a_disk_counts(tmp_path: Path) -> None:
    samples = (sample(n, ranks_in_disk_wait=ranks) for n, ranks in enumerate(([1], [], [0, 1], [0], [0])))
    (node,) = node_health(gather(write(tmp_path, *samples), Limits()))
    assert node.disk_waits_s == ((0, 2.0),)


def test_a_device_counts_while_it_works_and_belongs_to_the_rank_of_its_place(tmp_path: Path) -> None:
    busy = {"utilization_percent": 97, "throttle_reasons": ["hardware_thermal"], "sm_clock_mhz": 1200}
    idle = {"utilization_percent": 3, "throttle_reasons": ["hardware_power_brake"], "sm_clock_mhz": 300}
    samples = (
        {**sample(n), "gpu": [device, idle]}
        for n, device in enumerate((busy, busy, idle, {**busy, "throttle_reasons": []}))
    )
    (node,) = node_health(gather(write(tmp_path, *samples), Limits()))
    first, second = node.devices
    assert (first.rank, first.samples, first.slowed, first.clock_mhz) == (0, 3, (("hardware_thermal", 2 / 3),), 1200)
    assert (second.rank, second.samples, second.slowed) == (1, 0, ())


def test_without_telemetry_there_is_no_node(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    assert node_health(gather(tmp_path, Limits())) == ()
