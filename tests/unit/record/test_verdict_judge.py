"""What ranks publish of their calls: packed and read back as it was, and the first difference is found."""

import json
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st
from torch.distributed import HashStore

from diagnostics.contract.artifacts import RunPaths
from dtk.config.schema import WatchConfig
from dtk.record.heartbeat import HeartbeatFile
from dtk.record.verdict import Judge, Report, first_difference
from dtk.record.watch import Watch

HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=64)
CALLS = st.lists(st.sampled_from("abc"), min_size=1, max_size=20)


@given(HASHES)
def test_hashes_come_back_as_they_were(history: list[int]) -> None:
    report = Report(groups={"g": (len(history), tuple(history))})
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def published(calls: list[str], kept: int) -> tuple[int, tuple[int, ...]]:
    """A rank's count and its last rolling hashes."""
    rolling = [hash(tuple(calls[: n + 1])) for n in range(len(calls))]
    return len(calls), tuple(rolling[-kept:])


@given(CALLS, st.lists(st.integers(1, 20), min_size=2, max_size=5), st.integers(1, 20))
def test_ranks_on_one_way_do_not_differ_however_far_each_is(calls: list[str], counts: list[int], kept: int) -> None:
    assert first_difference({rank: published(calls[:count], kept) for rank, count in enumerate(counts)}) is None


@given(CALLS, CALLS, CALLS)
def test_the_first_differing_call_of_two_ranks_is_found(same: list[str], item: list[str], other: list[str]) -> None:
    ours, theirs = same + item, same + other
    shorter = min(len(ours), len(theirs))
    expected = next((n + 1 for n in range(shorter) if ours[n] != theirs[n]), None)
    assert first_difference({0: published(ours, 64), 1: published(theirs, 64)}) == expected


@pytest.mark.parametrize("mute", [0, 1])
def test_a_rank_that_stood_still_before_its_first_report_is_known_to_be_there(mute: int) -> None:
    store, judge = HashStore(), Judge(2)
    text = {"tick": 1, "idle_s": 5.0, "stepping": True, "leaving": "", "sound": True, "groups": {}}
    store.set(f"rank/{1 - mute}", json.dumps(text))
    for _ in range(5):
        judge.read(store, 1.0, 5.0)
    assert judge.staying() == [0, 1]
    result = judge.find(limit_s=4.0, first_limit_s=600.0)
    assert result is not None and result["kind"] == "stall"


@pytest.mark.parametrize("stepping", [False, True])
def test_a_quarter_of_an_hour_of_one_ranks_work_is_no_stall(stepping: bool) -> None:
    """It compiles, or writes a checkpoint, or evaluates, while the others wait for it: under the default limits."""
    store, judge, limits = HashStore(), Judge(4), WatchConfig()

    def tell(rank: int, tick: int, idle_s: float) -> None:
        text = {"tick": tick, "idle_s": idle_s, "stepping": stepping, "leaving": "", "sound": True, "groups": {}}
        store.set(f"rank/{rank}", json.dumps(text))

    seconds = []
    for second in range(0, 1800, 5):
        working_s = min(second, 900)  # Then it stands too.
        for rank in range(4):
            tell(rank, second, float(second - working_s if rank == 0 else second))
        judge.read(store, 5.0, 5.0)
        if judge.find(limits.stall_timeout_s, limits.first_step_timeout_s) is not None:
            seconds.append(second)
    assert seconds[0] == 900 + (limits.stall_timeout_s if stepping else limits.first_step_timeout_s)


def test_a_rank_whose_watch_is_silent_while_it_computes_is_no_stall() -> None:
    """Native code that holds Python's lock: the thread that reports cannot run."""
    store, judge = HashStore(), Judge(2)
    text = {"tick": 1, "idle_s": 0.0, "stepping": True, "leaving": "", "sound": True, "groups": {}}
    for rank in range(2):
        store.set(f"rank/{rank}", json.dumps(text))
    working = True
    judge.read(store, 1.0, 0.0)
    for _ in range(900):
        judge.read(store, 1.0, 0.0, lambda rank, silent_s: working and rank == 1 and silent_s >= 3.0)
        assert judge.find(limit_s=120.0, first_limit_s=600.0) is None
    working = False
    for _ in range(121):
        judge.read(store, 1.0, 0.0, lambda rank, silent_s: working)
    result = judge.find(limit_s=120.0, first_limit_s=600.0)
    assert result is not None and result["kind"] == "stall"


def test_only_a_process_of_this_host_that_takes_a_core_computes(tmp_path: Path) -> None:
    watch, paths = Watch.__new__(Watch), RunPaths(tmp_path)
    watch.paths, watch.attempt, watch.device_type, watch._ran = paths, 0, "cpu", {}
    beat = HeartbeatFile(paths.heartbeat(1), 0)
    beat.start()
    try:
        assert not watch._computes(1, 5.0)  # Nothing to compare with yet.
        end_s = time.process_time() + 0.2
        while time.process_time() < end_s:
            pass
        assert not watch._computes(1, 1.0) and watch._computes(1, 5.0)
        time.sleep(1.0)
        assert not watch._computes(1, 5.0)
        assert not watch._computes(0, 5.0)
        watch.device_type = "cuda"
        assert not watch._computes(1, 5.0)
    finally:
        beat.close("end")
