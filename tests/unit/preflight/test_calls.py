"""Programs as plain values: events, what the tape keeps of each call, their order, labels that ranks share."""

import pickle
from array import array

from diagnostics.contract.findings import Group
from diagnostics.evidence.calls import Wire
from diagnostics.evidence.ring.format import ANY_PEER, NO_PEER
from dtk.preflight.calls import NEW_GROUP, WIRES, End, Program, Record, Tape
from tests.unit.preflight.programs import blocking, entry, record

WORLD = Group("0", (0, 1), "default_pg")


def test_events_come_back_as_numbers() -> None:
    events = array("i", [0, -1, 1, 0, -3, -2])
    program = Program((entry(0, "barrier"), entry(0, "all_reduce", 4)), events.tobytes())
    assert program.steps() == events
    record = Record(0, program, (WORLD,), End())
    assert [call.op for call in record.issued()] == ["barrier", "all_reduce", "barrier"]


def test_equal_calls_share_an_entry() -> None:
    call = ("call", 0, "all_reduce", 8)
    item = record(0, [WORLD], blocking(call, call))
    # Each is on a line of its own; the same line twice is the same entry.
    assert len(item.program.entries) == 2
    assert item == pickle.loads(pickle.dumps(item))  # noqa: S301  Made here.


def test_a_label_is_the_same_on_ranks_of_different_groups() -> None:
    left = Record(0, Program((), b""), (WORLD, Group("3", (0, 1), "mesh_tp")), End())
    right = Record(2, Program((), b""), (WORLD, Group("4", (2, 3), "mesh_tp")), End())
    assert left.label(1) == right.label(1) == "mesh_tp 2"
    for unnamed in ("", "undefined"):
        assert Record(0, Program((), b""), (Group("7", (0, 1), unnamed),), End()).label(0) == "7"


def begin(tape: Tape, op: str, *, root: int = NO_PEER, amount: int = 8, p2p: bool = False, splits: str = "") -> int:
    text = tape.text
    texts = (text("train.py:3\tstep"), text("backward"), text(op), 0, text("float32"))
    sizes = (text("[[8]]"), 0, text("SUM"), text(splits))
    return tape.begin((0, 1, 1, 2), texts, sizes, (root, 5, 8, amount, 0), p2p, False)


def example_tape() -> Tape:
    tape = Tape()
    tape.add_group("0", (4, 7), "default_pg", 0)
    return tape


def test_equal_calls_are_one_entry_and_events_keep_the_order() -> None:
    tape = example_tape()
    assert [begin(tape, "all_reduce"), begin(tape, "barrier", amount=-1), begin(tape, "all_reduce")] == [0, 1, 2]
    tape.wait(1)
    tape.wait(1)
    program = tape.program()
    assert [entry.op for entry in program.entries] == ["all_reduce", "barrier"]
    assert list(program.steps()) == [0, 1, 0, -2], "a call is waited for once"


def test_an_entry_says_what_the_ranks_must_agree_on() -> None:
    tape = example_tape()
    begin(tape, "all_gather_into_tensor", root=NO_PEER)
    begin(tape, "reduce", root=7)
    gather, reduce = tape.program().entries
    assert gather.wire == Wire("all_gather", (8,), (), None, "SUM"), "bytes count, whatever the dtype"
    assert reduce.wire == Wire("reduce", (8,), ("float32",), 1, "SUM"), "the root is a rank in the group"
    assert (gather.site, gather.region, gather.step, gather.sizes) == ("train.py:3\tstep", "backward", 2, "[[8]]")


def test_ends_of_a_transfer() -> None:
    tape = example_tape()
    begin(tape, "isend", root=7, p2p=True)
    begin(tape, "recv", root=ANY_PEER, p2p=True)
    send, receive = tape.program().entries
    assert (send.p2p, send.peer, send.tag, send.wire.root) == ("send", 1, 5, None)
    assert (receive.p2p, receive.peer) == ("recv", None)


def test_groups_of_one_name_are_told_apart_and_new_groups_show_their_ranks() -> None:
    tape = example_tape()
    assert tape.add_group("0", (4, 7), "again", 1) == 1
    assert [group.name for group in tape.groups] == ["0", "0#1"]
    begin(tape, NEW_GROUP, splits="[4,7]")
    assert tape.program().entries[0].sizes == "[[4,7]]"


def test_two_calls_of_one_operation_know_the_same_parts() -> None:
    """So that ranks whose `Wire`s differ in any part do not agree, and `pool.Results` may compare them as a whole."""
    typed: dict[str, set[bool]] = {}
    for wire, is_typed in WIRES.values():
        typed.setdefault(wire, set()).add(is_typed)
    assert len(typed) > 10 and all(len(kinds) == 1 for kinds in typed.values())
