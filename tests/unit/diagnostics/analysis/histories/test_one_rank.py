"""From the dumps of one rank to what the survey keeps of it."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from diagnostics.analysis.histories.one_rank import MAX_P2P, SNAPSHOTS, Digest, choose, digest, load
from diagnostics.evidence.calls import Call, Dump, GroupKey
from diagnostics.evidence.model import Problem
from tests.unit.diagnostics.analysis.calls import DEFAULT, call, history
from tests.unit.diagnostics.analysis.divergence.programs import Memory

GLOO = GroupKey("gloo", "0", "default_pg")


def dump(*calls: Call, recorder: str = "nccl", **more: Any) -> Dump:
    return Dump(0, more.pop("file", recorder), recorder, list(calls), **more)


def digested(*dumps: Dump, attempt: int | None = None) -> Digest:
    return digest(0, [Memory(dump, dump.file) for dump in dumps], attempt)


def line(*dumps: Dump) -> tuple[int, int, int, int | None, bool]:
    record = digested(*dumps).record
    assert record is not None
    result = record.lines[DEFAULT]
    pending = None if result.pending is None else result.pending.seq
    return result.first, result.issued, result.done, pending, result.active_only


class Broken:
    rank, file = 0, "broken"

    def load(self) -> list[Dump]:
        raise ValueError("damaged: it ends early")


def test_a_file_that_cannot_be_read_is_a_problem_and_the_others_count() -> None:
    problems: list[Problem] = []
    dumps = load([Broken(), Memory(dump(call(1)))], problems)
    assert len(dumps) == 1
    assert [(problem.file, problem.what, problem.unread) for problem in problems] == [
        ("broken", "damaged: it ends early", True)
    ]
    assert digest(0, [Broken()], None).record is None


def test_of_one_recorder_a_full_dump_counts_before_a_black_box_and_then_the_younger_one() -> None:
    full, box = dump(call(1), file="full"), dump(call(1), call(2), file="box", black_box=True)
    assert [item.file for item in choose([box, full], None)] == ["full"]
    later = dump(call(1, at_s=2e9), file="later")
    assert [item.file for item in choose([later, full], None)] == ["later"]
    both = [dump(call(1, key=GLOO), recorder="gloo"), full]
    assert [item.recorder for item in choose(both, None)] == ["gloo", "nccl"]


def test_dumps_of_earlier_attempts_do_not_count() -> None:
    old, new = dump(call(1, at_s=2e9), file="old", attempt=0), dump(call(1), file="new", attempt=1)
    assert [item.file for item in choose([old, new], 1)] == ["new"]
    assert [item.file for item in choose([old, new], None)] == ["old"]


def test_an_empty_dump_counts_only_where_there_is_no_other() -> None:
    empty = dump(file="empty")
    assert [item.file for item in choose([empty, dump(call(1))], None)] == ["nccl"]
    assert [item.file for item in choose([empty, dump(file="box", black_box=True)], None)] == ["empty"]


def test_where_a_rank_is_in_a_group() -> None:
    calls = [call(4), call(5), call(6, done=False), call(7, done=False)]
    assert line(dump(*calls)) == (4, 7, 5, 6, False)
    assert line(dump(*calls[:2])) == (4, 5, 5, None, False)
    assert line(dump(*calls[2:])) == (6, 7, 0, 6, True)


def test_counters_of_the_recorder_go_beyond_the_calls_that_it_kept() -> None:
    calls = (call(4), call(5))
    assert line(dump(*calls, counters={DEFAULT: (9, 8)})) == (4, 9, 8, None, False)
    assert line(dump(*calls, counters={DEFAULT: (90_000, 8)})) == (4, 5, 5, None, False), "they count something else"
    assert line(dump(counters={DEFAULT: (3, 2)})) == (4, 3, 2, None, True)


def test_the_youngest_call_of_any_recorder_is_the_last() -> None:
    record = digested(dump(call(1), call(2)), dump(call(9, key=GLOO), recorder="gloo")).record
    assert record is not None and record.last is not None and record.last.seq == 9
    assert record.recorders == {"nccl", "gloo"} and record.stuck_dump
    assert [item.seq for item in record.pending()] == []


def test_a_periodic_snapshot_is_no_sign_of_a_hang() -> None:
    ring = GroupKey(SNAPSHOTS, "0", "")
    for written in (dump(call(1), black_box=True), dump(call(1, key=ring), recorder=SNAPSHOTS, step=7, region="data")):
        record = digested(written).record
        assert record is not None and not record.stuck_dump
    assert record is not None and (record.step, record.region) == (7, "data")


@pytest.mark.parametrize(("later_s", "waits"), [(None, True), (11.0, True), (14.0, False)])
def test_what_was_pending_in_a_snapshot_ends_when_another_recorder_saw_the_rank_go_on(
    later_s: float | None, waits: bool
) -> None:
    pending, receive = (call(1, key=GLOO, done=False, at_s=10.0, **more) for more in ({}, {"p2p": "recv", "peer": 1}))
    snapshot = dump(pending, receive, recorder="gloo", black_box=True, time_s=12.0)
    ring = dump(call(5, key=GroupKey(SNAPSHOTS, "0", ""), at_s=later_s), recorder=SNAPSHOTS)
    record = digested(snapshot, *([ring] if later_s else [])).record
    assert record is not None and [item.key for item in record.pending()] == [GLOO, GLOO] * waits
    assert record.lines[GLOO].issued == 1, "its calls are known all the same"


def test_pending_sends_and_receives_are_kept_up_to_a_limit() -> None:
    sends = [call(seq, op="send", p2p="send", peer=1, done=seq < 3) for seq in range(1, 4 + MAX_P2P)]
    digest = digested(dump(*sends, counters={DEFAULT: (99, 2)}))
    assert digest.record is not None and digest.with_p2p == {DEFAULT}
    assert [item.seq for item in digest.record.p2p] == list(range(3, 3 + MAX_P2P))
    assert digest.record.p2p_done == {DEFAULT: 2}
    with_collective = digested(dump(call(1), sends[0], counters={DEFAULT: (99, 50)}))
    assert with_collective.record is not None
    assert with_collective.record.p2p_done == {DEFAULT: 1}, "NCCL counts both kinds in one number"


def test_the_parts_of_a_coalesced_block_share_a_position_and_a_signature() -> None:
    parts = [call(2, 10, size=1), call(2, 10, size=2)]
    digest = digested(dump(call(1), *parts, call(3)))
    seqs, signatures, times = digest.positions[DEFAULT].arrays()
    assert list(seqs) == [1, 2, 3] and list(signatures) == [0, 1, 0] and len(times) == 3
    assert digest.signatures == [(call(1).wire,), tuple(part.wire for part in parts)]


@pytest.mark.parametrize(("group", "possible"), [("4", False), ("3", True), ("9", True), ("tp", True)])
def test_a_rank_cannot_be_in_groups_between_two_that_it_counted_in_a_row(group: str, possible: bool) -> None:
    record = digested(dump(call(1), outside=[(3, 6)])).record
    assert record is not None and record.can_be_in(group) == possible
    record = digested(dump(call(1), only_default_group=True)).record
    assert record is not None and not record.can_be_in(group)


def test_damaged_entries_are_told() -> None:
    digest = digested(replace(dump(call(1)), damaged=3))
    assert [problem.what for problem in digest.problems] == ["3 entries could not be parsed"]


def test_a_digest_comes_through_msgpack_unchanged() -> None:
    """Workers send it so."""
    send = call(4, op="send", p2p="send", peer=1, done=False)
    digest = digested(dump(*history(1, 2, 3, step=2), send, members={DEFAULT: (0, 1)}, outside=[(1, 4)]))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(digest), type=Digest) == digest
