"""One rank's trace boiled down: what surrounds each call, how long its kernels block, which devices it uses."""

import pickle
from pathlib import Path

import pytest

from diagnostics.analysis.step_profile.profile import RankProfile
from tests.trace_generator import Simulator
from tests.trace_scenarios import LAYERS, STEPS, ddp, fsdp
from tests.unit.diagnostics.analysis.step_profile.profiles import call, profiled


@pytest.fixture(scope="module")
def reduced(tmp_path_factory: pytest.TempPathFactory) -> RankProfile:
    return profiled(ddp(Simulator(ranks=1), buckets=4), tmp_path_factory.mktemp("ddp"))[0]


def test_steps_and_their_calls(reduced: RankProfile) -> None:
    assert [step.number for step in reduced.steps] == [step + 5 for step in range(STEPS)] and reduced.marked
    assert [sum(call.step == at for call in reduced.calls) for at in range(STEPS)] == [4] * STEPS
    for step in reduced.steps:
        assert (step.micros, step.updated, len(step.backward)) == (1, 1, 1)
        assert step.times.wall == step.end - step.start


def test_what_surrounds_a_call(reduced: RankProfile) -> None:
    assert {(call.phase, call.micro, call.on_compute, call.waited) for call in reduced.calls} == {
        ("backward", 0, False, False)
    }
    first, *others = [call for call in reduced.calls if call.step == 1]
    assert all(other.busy > 0 for other in others) and first.issued >= 0
    assert all(call.overlapped + call.exposed <= call.duration for call in reduced.calls)


def test_parts_add_up_to_the_whole(reduced: RankProfile) -> None:
    for parts in (reduced.by_group, reduced.by_phase):
        assert sum(part.exposed for part in parts.values()) == reduced.window.exposed
        assert sum(part.communication for part in parts.values()) == reduced.window.communication
    assert set(reduced.by_phase) == {"backward"} and reduced.recognized_by == {"args": 4 * STEPS}
    assert reduced.kernels == STEPS * (2 * LAYERS + 3) and not reduced.unknown and not reduced.compiled


@pytest.mark.parametrize(("blocking", "share"), [(True, 1.0), (False, 0.0)])
def test_launches_that_wait_for_their_kernels(tmp_path: Path, blocking: bool, share: float) -> None:
    (rank_profile,) = profiled(ddp(Simulator(ranks=1, blocking=blocking)), tmp_path)
    assert rank_profile.long_kernels > 30 and rank_profile.blocking == pytest.approx(share, abs=0.1)


def test_a_gather_that_compute_waits_for_is_told(tmp_path: Path) -> None:
    kept = profiled(fsdp(units=4, transfer=9000.0, prefetch=False), tmp_path)[0]
    gathers = [call for call in kept.calls if call.message.op == "all_gather" and call.phase == "forward"]
    assert gathers and all(gather.exposed > 0.9 * gather.duration for gather in gathers)


def test_a_profile_comes_through_another_process_unchanged(reduced: RankProfile) -> None:
    """Large traces are read in workers."""
    assert pickle.loads(pickle.dumps(reduced)) == reduced  # noqa: S301 - made here


def test_transfer_is_the_duration_until_a_floor_is_known() -> None:
    call_profile = call(length=100)
    assert (call_profile.duration, call_profile.transfer, call_profile.exposed_transfer) == (100, 100, 100)
    call_profile.floor = 30
    assert (call_profile.transfer, call_profile.exposed_transfer) == (30, 30)
