"""The host enqueued work that its device does not complete while the devices of others do."""

from pathlib import Path

from tests.unit.diagnostics.causes.hang.helpers import finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.device_stall"
PROGRAM = [Op(size=size, line=size, wait=False) for size in range(1, 9)]


def test_the_device_that_completes_nothing_is_blamed(tmp_path: Path) -> None:
    found = finding(tmp_path, job(*[PROGRAM] * 4, frozen=(2,)), CAUSE)
    assert (found.status, found.ranks) == ("confirmed", (2,))
    assert found.summary.startswith(
        "The device of rank 2 does not complete work that the others complete: rank 2 is stuck at "
    )
    assert "completed 1 of 8 enqueued, its peers completed 8" in found.measured
    assert "Xid and ECC errors on the device of rank 2" in found.remedies[0].change
    assert found.where[0].rank == 2 and str(found.where[0].does).endswith("which does not complete")


def test_two_devices_are_in_the_plural(tmp_path: Path) -> None:
    found = finding(tmp_path, job(*[PROGRAM] * 4, frozen=(1, 2)), CAUSE)
    assert found.ranks == (1, 2) and found.summary.startswith("The devices of ranks 1 and 2 do not complete")


def test_gloo_keeps_no_counters_to_decide_it_from(tmp_path: Path) -> None:
    found = finding(tmp_path, job(*[PROGRAM] * 2, backend="gloo"), CAUSE)
    assert found.status != "confirmed"


def test_a_device_that_did_not_begin_what_the_others_execute(tmp_path: Path) -> None:
    played = job(*[PROGRAM[:2]] * 4, frozen=(2,), timed=True, nobody_completes=2)
    found = finding(tmp_path, played, CAUSE)
    assert (found.status, found.ranks, found.victims) == ("confirmed", (2,), (0, 1, 3))
    assert found.summary.startswith("The device of rank 2 has not begun all_reduce [2] float32")
    assert "begun on 3 ranks, not on 1 rank that enqueued it" in found.measured
