"""What a verdict of the watch says, from where the ranks stand and what they called."""

from diagnostics.evidence.calls import Call, Described, GroupKey, Wire
from diagnostics.evidence.model import Frame
from dtk.record import verdict
from dtk.record.verdict import Place, site_of


def call(text: str, line: int = 12, function: str = "step") -> Call:
    stack = (Frame("/job/train.py", line, function),) if line else ()
    return Call(GroupKey("dtk", "0", "dp"), 4, Described(Wire(text, (), ()), text), True, 1.0, stack=stack)


def test_a_call_without_a_line_or_a_function() -> None:
    assert site_of(call("barrier")) == "train.py:12 in step"
    assert site_of(call("barrier", function="")) == "train.py:12"
    assert site_of(call("barrier", line=0)) == "an unknown place"


def test_different_calls_at_one_position_and_ranks_that_parted_before() -> None:
    sides = [([0, 1], call("all_reduce [8]")), ([2], call("barrier", 30))]
    assert verdict.desync_text("dp", 5, 5, sides) == (
        "ranks called different collectives at position 5 of group dp: ranks 0 and 1 called all_reduce [8] at "
        "train.py:12 in step; rank 2 called barrier at train.py:30 in step"
    )
    earlier = verdict.desync_text("dp", 3, 5, sides)
    assert "the same collective from different lines at position 3" in earlier
    assert "(their calls differ from position 5 on)" in earlier
    assert verdict.desync_text("", 5, 5, []).endswith("too long ago to be still recorded")


def test_where_ranks_stand_of_which_none_moves() -> None:
    outside = [Place(1, "", "train.py:9 in load")]
    inside = [Place(rank, "all_reduce [8]", "train.py:12 in step", group_name="dp") for rank in (0, 2)]
    assert verdict.stall_text(30.4, [3], {4: "failed", 5: "end"}, [outside, inside]) == (
        "no progress for 30 s: rank 3 does not answer: it is stopped, or native code holds the GIL; "
        "rank 4 failed before; rank 5 exited normally before; rank 1 is at train.py:9 in load, outside any recorded "
        "collective; ranks 0 and 2 wait in all_reduce [8] at train.py:12 in step of group dp"
    )
