"""Programs as plain values: events, the calls of a record in order, labels that all ranks share."""

import pickle
from array import array

from diagnostics.contract.findings import Group
from dtk.preflight.calls import End, Program, Record
from tests.unit.preflight.programs import blocking, entry, record

WORLD = Group("0", (0, 1), "default_pg")


def test_events_come_back_as_numbers() -> None:
    events = array("i", [0, -1, 1, 0, -3, -2])
    program = Program((entry(0, "barrier"), entry(0, "all_reduce", 4)), events.tobytes())
    assert program.steps() == events
    one = Record(0, program, (WORLD,), End())
    assert [call.op for call in one.issued()] == ["barrier", "all_reduce", "barrier"]


def test_equal_calls_share_an_entry() -> None:
    call = ("call", 0, "all_reduce", 8)
    one = record(0, [WORLD], blocking(call, call))
    # Each is on a line of its own; the same line twice is the same entry.
    assert len(one.program.entries) == 2
    assert one == pickle.loads(pickle.dumps(one))  # noqa: S301  Made here.


def test_a_label_is_the_same_on_ranks_of_different_groups() -> None:
    left = Record(0, Program((), b""), (WORLD, Group("3", (0, 1), "mesh_tp")), End())
    right = Record(2, Program((), b""), (WORLD, Group("4", (2, 3), "mesh_tp")), End())
    assert left.label(1) == right.label(1) == "mesh_tp 2"
    for unnamed in ("", "undefined"):
        assert Record(0, Program((), b""), (Group("7", (0, 1), unnamed),), End()).label(0) == "7"
