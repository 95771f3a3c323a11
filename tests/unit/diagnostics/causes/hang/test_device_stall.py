"""The host enqueued work that its device does not complete while the devices of others do."""

from pathlib import Path

from diagnostics.causes.hang.device_stall import DeviceStall, _lagging, stalled_devices
from diagnostics.evidence.calls import GroupKey
from tests.unit.diagnostics.analysis.calls import call, history, job as state_of, waiting
from tests.unit.diagnostics.causes.hang.helpers import finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.device_stall"
PROGRAM = [Op(size=size, line=size, wait=False) for size in range(1, 9)]


def test_the_device_that_completes_nothing_is_blamed(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[PROGRAM] * 4, frozen=(2,)), CAUSE)
    assert (result.status, result.ranks) == ("confirmed", (2,))
    assert result.summary.startswith(
        "The device of rank 2 does not complete work that the others complete: rank 2 is stuck at "
    )
    assert "completed 1 of 8 enqueued, its peers completed 8" in result.measured
    assert "Xid and ECC errors on the device of rank 2" in result.remedies[0].change
    assert result.where[0].rank == 2 and str(result.where[0].does).endswith("which does not complete")


def test_two_devices_are_in_the_plural(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[PROGRAM] * 4, frozen=(1, 2)), CAUSE)
    assert result.ranks == (1, 2) and result.summary.startswith("The devices of ranks 1 and 2 do not complete")


def test_gloo_keeps_no_counters_to_decide_it_from(tmp_path: Path) -> None:
    result = finding(tmp_path, job(*[PROGRAM] * 2, backend="gloo"), CAUSE)
    assert result.status != "confirmed"


def test_a_device_that_did_not_begin_what_the_others_execute(tmp_path: Path) -> None:
    played = job(*[PROGRAM[:2]] * 4, frozen=(2,), timed=True, nobody_completes=2)
    result = finding(tmp_path, played, CAUSE)
    assert (result.status, result.ranks, result.victims) == ("confirmed", (2,), (0, 1, 3))
    assert result.summary.startswith("The device of rank 2 has not begun all_reduce [2] float32")
    assert "begun on 3 ranks, not on 1 rank that enqueued it" in result.measured


def test_a_device_that_did_not_begin_a_message_that_its_peer_executes() -> None:
    def stuck(shown: bool) -> DeviceStall | None:
        message = call(2, 20, "send", done=False, p2p="send", peer=1, begun=True)
        other = call(2, 20, "recv", done=False, p2p="recv", peer=0)
        ranks = {0: [call(1, begun=True), message], 1: [call(1, begun=shown), other], 2: waiting(2)}
        return stalled_devices(state_of(ranks, 3))

    case = stuck(shown=True)
    assert case is not None and (case.ranks, case.peers, case.begun) == ((1,), (0,), True)
    assert stuck(shown=False) is None, "its recorder shows nothing that its device begins"


def done(count: int) -> list:
    return [call(seq) for seq in range(1, count + 1)]


def test_a_device_that_does_not_complete_what_others_completed() -> None:
    stuck = [call(1), *(call(seq, done=False) for seq in (2, 3, 4))]
    state = state_of({0: done(4), 1: done(4), 2: stuck, 3: done(4)}, 4)
    case = stalled_devices(state)
    assert case is not None
    assert (case.ranks, case.completed, case.enqueued) == ((2,), 1, 4)
    assert (case.peers, case.peers_completed, case.operation.seq) == ((0, 1, 3), 4, 2)
    assert _lagging(state) == [2]
    assert stalled_devices(state_of({0: done(4), 1: done(4)}, 2)) is None


def test_half_of_the_members_are_no_exception() -> None:
    stuck = [call(1), call(2, done=False)]
    state = state_of({0: done(2), 1: done(2), 2: stuck, 3: list(stuck)}, 4)
    assert _lagging(state) == [2, 3]


def test_gloo_does_not_show_what_a_device_completed() -> None:
    gloo = GroupKey("gloo", "0", "default_pg")
    stuck = [call(1, key=gloo), call(2, key=gloo, done=False)]
    state = state_of({0: history(10, 20, key=gloo), 1: history(10, 20, key=gloo), 2: stuck}, 3)
    assert _lagging(state) == [] and stalled_devices(state) is None
