from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from diagnostics.analysis.step_profile.breakdown import Breakdown, attainable_percent
from diagnostics.analysis.step_profile.profile import RankProfile, profile
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.trace import TraceFile
from tests.shared_data import shared_data
from tests.trace_generator import Simulator, Style, write
from tests.trace_scenarios import SCENARIOS, ddp

REAL = ("dlrm8_v100", "hta_ddp2_a100_nccl_args", "hta_diff_control_a100", "hta_sampled128", "gpupuzzlers_sync")


def boiled(path: Path) -> RankProfile:
    return profile(TraceFile(path, "t", None, Limits()).load())


def adds_up(rank_profile: RankProfile) -> None:
    for times in [rank_profile.window, *(step.times for step in rank_profile.steps)]:
        assert times.compute + times.exposed + times.memory + times.idle == times.wall
        assert times.overlapped + times.exposed <= times.communication
    for parts in (rank_profile.by_group, rank_profile.by_phase):
        assert sum(part.exposed for part in parts.values()) == rank_profile.window.exposed
        assert sum(part.communication for part in parts.values()) == rank_profile.window.communication
        assert sum(part.overlapped for part in parts.values()) == rank_profile.window.overlapped
    assert sum(call.exposed for call in rank_profile.calls) == rank_profile.window.exposed
    for left, right in zip(rank_profile.steps, rank_profile.steps[1:]):
        assert left.end == right.start


@pytest.mark.parametrize("name", REAL)
def test_times_of_real_traces_add_up(name: str) -> None:
    for path in sorted(shared_data(f"traces/{name}").glob("*.gz")):
        adds_up(boiled(path))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda value: value.name)
def test_times_of_generated_traces_add_up(tmp_path: Path, scenario: Any) -> None:
    for path in write(scenario.build(), tmp_path):
        rank_profile = boiled(path)
        adds_up(rank_profile)
        assert (
            sum((step.times.wall for step in rank_profile.steps), 0) == rank_profile.window.wall + rank_profile.outside
        )


def test_a_step_that_can_be_checked_by_hand(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    sim.kernel(100.0)
    sim.collective("all_reduce", 1 << 20, 50.0)
    sim.kernel(30.0)
    times = boiled(write(sim, tmp_path, Style(fractional=False))[0]).window
    # The kernels follow each other; the collective runs beside the second one and 20 us longer.
    assert times == Breakdown(wall=150_000, compute=130_000, communication=50_000, overlapped=30_000, exposed=20_000)


STYLES = {
    "order": Style(shuffled=True),
    "plain": Style(compressed=False),
    "pretty": Style(compressed=False, pretty=True),
    "base": Style(base_ns=0),
    "streams": Style(streams=(123, 7)),
    "kernels": Style(kernel_name="my_own_thing_{op}_v7"),
    "nvshmem": Style(kernel_name="nvshmemi_{op}_kernel"),
    "amd": Style(streams=(0, 3), kernel_name="rcclGenericKernel<{op}>"),
}


def essence(rank_profile: RankProfile) -> dict[str, Any]:
    value = asdict(replace(rank_profile, base_ns=0, gaps=[], file=""))
    value["calls"] = [
        (c.start, c.end, c.message, c.exposed, c.phase, c.waited, c.on_compute) for c in rank_profile.calls
    ]
    return value


@pytest.mark.parametrize("style", STYLES)
def test_measures_do_not_depend_on_how_the_trace_is_written(tmp_path: Path, style: str) -> None:
    reference = essence(boiled(write(ddp(Simulator(ranks=2)), tmp_path / "a")[1]))
    assert reference["window"].communication > 0
    assert essence(boiled(write(ddp(Simulator(ranks=2)), tmp_path / "b", STYLES[style])[1])) == reference


def test_whole_microseconds_as_integers_or_fractions(tmp_path: Path) -> None:
    sim = Simulator(ranks=1, launch_us=10.0)
    for _ in range(5):
        sim.kernel(100.0)
        sim.collective("all_reduce", 1 << 20, 50.0)
    first, other = (boiled(write(sim, tmp_path / str(f), Style(fractional=f))[0]) for f in (True, False))
    assert essence(first) == essence(other)


def test_old_names_without_arguments_find_the_same_communication(tmp_path: Path) -> None:
    new = boiled(write(ddp(Simulator(ranks=2)), tmp_path / "new")[0])
    old = boiled(write(ddp(Simulator(ranks=2)), tmp_path / "old", Style(old=True))[0])
    assert old.window == new.window
    assert old.recognized_by == {"annotation": 12}
    assert [call.message.size_bytes for call in old.calls] == [call.message.size_bytes for call in new.calls]


def test_copies_of_annotations_on_the_device_are_not_counted(tmp_path: Path) -> None:
    rank_profile = boiled(write(ddp(Simulator(ranks=2)), tmp_path)[0])
    assert len(rank_profile.calls) == 3 * 4
    assert rank_profile.recognized_by == {"args": 12}


def test_unknown_kernels_beside_collectives_are_listed(tmp_path: Path) -> None:
    sim = Simulator(ranks=1)
    sim.kernel(100.0)
    sim.collective("all_reduce", 1 << 20, 50.0)
    sim.kernel(10.0, name="strange_thing", stream=20)
    assert boiled(write(sim, tmp_path)[0]).unknown == {"strange_thing": 1}


@pytest.mark.parametrize(("transfer", "compute", "percent"), [(0, 5, 100), (10, 5, 50), (5, 10, 100), (10, 0, 0)])
def test_no_more_can_overlap_than_there_is_compute(transfer: float, compute: float, percent: float) -> None:
    assert attainable_percent(transfer, compute) == percent
