"""Where each rank's watchdog says that it stands: lines of one group brought together, others marked as mixed."""

import pytest

from diagnostics.analysis.histories.watchdog_lines import UNNAMED, Counters, GroupLog, Wait, read_all, stamp_s
from diagnostics.evidence.calls import Wire
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, Frame, LogFact
from tests.unit.diagnostics.analysis.calls import fact


def groups(*facts: LogFact) -> list[GroupLog]:
    from pathlib import Path

    return read_all(Evidence(Path(), Limits(), facts=list(facts)))


def text_of(wait: Wait) -> str:
    return wait.call(GroupLog("0")).text


def timeout(rank: int, seq: int = 7, line: int = 1, text: str = "", **fields: object) -> LogFact:
    expected = {"seq": seq, "op": "ALLREDUCE", "numel_in": 8, "timeout_ms": 600_000, **fields}
    return fact("watchdog_timeout", rank, line, text, **expected)


def status(rank: int, enqueued: int = 9, completed: int = 6, **fields: object) -> LogFact:
    named = {"guid": "0", "desc": "default_pg", "last_enqueued": enqueued, "last_completed": completed, **fields}
    return fact("watchdog_status", rank, 2, **named)


def test_a_timeout_without_a_group_belongs_to_that_of_the_status_beside_it() -> None:
    (group,) = groups(timeout(0), status(0, work=7), status(1))
    assert (group.name, group.desc, group.default, group.mixed) == ("0", "default_pg", True, False)
    assert group.waits.keys() == {0} and group.waits[0].seq == 7
    assert group.counters[0].work == 7 and group.counters[1] == Counters(9, 6, group.counters[1].fact, None)


def test_without_a_status_the_group_has_no_name() -> None:
    (group,) = groups(timeout(0), timeout(1))
    assert group.name == UNNAMED and not group.default and sorted(group.waits) == [0, 1]


def test_the_same_timeout_printed_with_and_without_its_group_counts_once() -> None:
    (group,) = groups(timeout(0), timeout(0, line=3, guid="0", desc="default_pg"))
    assert group.name == "0" and group.waits.keys() == {0}


def test_groups_of_which_only_counters_are_known_are_not_waited_in() -> None:
    assert [group.name for group in groups(status(0), status(0, guid="1", desc="tp"))] == ["0", "1"]
    assert not any(group.waits for group in groups(status(0), status(0, guid="1", desc="tp")))


@pytest.mark.parametrize(
    ("lines", "mixed"),
    [
        ([timeout(0, guid="1", group_rank=0), timeout(4, guid="1", group_rank=1)], False),
        ([timeout(0, guid="1", group_rank=1), timeout(4, guid="1", group_rank=0)], True),
        ([timeout(0, guid="1", group_rank=3)], True),
        ([timeout(0, guid="0", desc="default_pg", group_rank=0), timeout(1, guid="0", group_rank=0)], True),
        ([timeout(0, 7, guid="1"), timeout(0, 8, guid="1")], True),
        ([timeout(0, guid="1", only_in_group=True)], True),
        ([timeout(0, group_rank=0), timeout(1, group_rank=1)], False),
    ],
)
def test_lines_that_cannot_be_of_one_group_are_mixed(lines: list[LogFact], mixed: bool) -> None:
    (group,) = groups(*lines)
    assert group.mixed == mixed


@pytest.mark.parametrize(("minutes", "mixed"), [(10, False), (12, True)])
def test_timeouts_far_apart_are_not_of_one_hang(minutes: int, mixed: bool) -> None:
    """The first one to time out, here after 10 minutes, ends the job soon after."""
    first, second = "[E1121 10:00:00.1 x] ...", f"[E1121 10:{minutes:02}:00.1 x] ..."
    (group,) = groups(timeout(0, text=first), timeout(1, text=second))
    assert group.mixed == mixed


def test_the_users_line_is_in_the_first_stack_behind_the_timeout() -> None:
    def stack(line: int, at: int, rank: int = 0) -> LogFact:
        return (
            fact("collective_stack", rank, line, file="/job/train.py", function="log", op="all_reduce")
            if not at
            else (
                LogFact(
                    "collective_stack",
                    rank,
                    "train.log",
                    line,
                    "",
                    {"file": "/job/train.py", "line": at, "function": "log"},
                )
            )
        )

    (group,) = groups(timeout(0, line=5), stack(3, 1), stack(9, 12), stack(7, 11), stack(6, 13, rank=1))
    assert group.waits[0].site == Frame("/job/train.py", 11, "log")
    (group,) = groups(timeout(0, line=5), stack(3, 1))
    assert group.waits[0].site is None


def test_a_line_without_a_position_is_left_out() -> None:
    assert groups(timeout(0, seq="x")) == []  # type: ignore[arg-type]


def wait(op: str, numel: int | None = 8, text: str = "") -> Wait:
    return Wait(0, 1, op, numel, None, timeout(0, text=text))


@pytest.mark.parametrize(
    ("op", "text", "even", "counted", "wire"),
    [
        ("ALLREDUCE", "all_reduce of 8 elements", True, True, Wire("all_reduce", (8,), ())),
        ("_ALLGATHER_BASE", "all_gather of 8 elements", True, True, Wire("all_gather", (8,), ())),
        ("GATHER", "gather", False, True, Wire("gather", (), ())),
        ("SEND", "send", False, False, Wire("send", (), ())),
    ],
)
def test_what_is_known_of_a_call(op: str, text: str, even: bool, counted: bool, wire: Wire) -> None:
    item = wait(op)
    assert (text_of(item), item.even, item.counted, item.wire) == (text, even, counted, wire)


def test_one_element_and_no_number() -> None:
    assert text_of(wait("ALLREDUCE", 1)) == "all_reduce of 1 element"
    assert text_of(wait("ALLREDUCE", None)) == "all_reduce" and not wait("ALLREDUCE", None).even


def test_times_of_lines_differ_by_the_seconds_between_them() -> None:
    first, second = (stamp_s(wait("ALLREDUCE", text=f"[E1231 23:59:{at} x]").fact) for at in ("50.1", "58.9"))
    assert first is not None and second is not None
    assert second - first == pytest.approx(8.8)
    assert stamp_s(wait("ALLREDUCE", text="no stamp").fact) is None
