"""The stuck state of a simulated job as evidence: calls, counters, ends, errors and stacks, none of them in a file."""

from diagnostics.contract.findings import Group
from diagnostics.evidence.calls import GroupKey
from diagnostics.evidence.model import Frame, RankError
from dtk.preflight import evidence as module
from dtk.preflight.calls import End, Record
from dtk.preflight.evidence import History, evidence, frame_of, stack_of, whole_history
from dtk.preflight.match import RankProgress, match
from tests.unit.preflight.programs import Step, blocking, entry, record

WORLD = Group("0", (4, 7), "default_pg")
PAIR = Group("1", (7, 4), "pair")
KEY = GroupKey("dtk", "0", "default_pg")


def test_calls_up_to_the_stall_and_where_the_rank_waits() -> None:
    steps = blocking(("call", 0, "all_reduce", 8), ("call", 1, "barrier", -1), ("call", 0, "all_reduce", 4))
    (dump,) = History(record(4, [WORLD, PAIR], steps), RankProgress(3, 2, (2,)), 10).load()
    assert [(call.key.name, call.seq, call.done) for call in dump.calls] == [
        ("0", 1, True),
        ("1", 1, True),
        ("0", 2, False),
    ]
    assert (dump.rank, dump.recorder, dump.file) == (4, "dtk", "simulated rank 4")
    assert dump.counters == {KEY: (2, 1), GroupKey("dtk", "1", "pair"): (1, 1)}
    assert dump.members[KEY] == (4, 7)
    first = dump.calls[0]
    assert first.text == "all_reduce [8] float32 SUM"
    assert first.stack == (Frame("/job/train.py", 10, "train"),)
    assert (first.step, first.wire.amounts, dump.calls[1].wire.amounts) == (1, (8,), ())


def test_only_the_last_calls_are_handed_over_but_all_are_counted() -> None:
    steps: list[Step] = [("call", 0, "all_reduce", 8)] * 5
    (dump,) = History(record(4, [WORLD], steps), RankProgress(5, None, (4,)), 2).load()
    assert [call.seq for call in dump.calls] == [4, 5]
    assert dump.counters[KEY] == (5, 4)


def test_calls_after_the_stall_are_in_the_whole_history_only() -> None:
    item = record(4, [WORLD], blocking(("call", 0, "all_reduce", 8), ("call", 0, "all_reduce", 2)))
    assert len(History(item, RankProgress(1, 0, (0,)), 10).load()[0].calls) == 1
    assert [call.wire.amounts for call in whole_history(item)] == [(8,), (2,)]


def test_roots_and_peers_are_global_ranks() -> None:
    item = entry(1, "broadcast")._replace(wire=entry(1, "broadcast").wire._replace(root=1, reduce_op=""))
    steps: list[Step] = [("send", 1, 1), ("recv", 1, 1)]
    result = record(4, [WORLD, PAIR], steps)
    program = result.program.__class__(
        (*result.program.entries, item), result.program.events + (2).to_bytes(4, "little")
    )
    (dump,) = History(Record(4, program, result.groups, result.end), RankProgress(3, 1, (0, 1)), 10).load()
    send, receive, broadcast = dump.calls
    assert (send.p2p, send.peer, send.text) == ("send", 4, "send [1] float32 to 4")
    assert (broadcast.wire.root, broadcast.text) == (4, "broadcast [1] float32 root 4")
    assert receive.completion_known and not send.completion_known, "a send that nobody waits for yet blocks nothing"


def test_how_ranks_ended() -> None:
    error = RankError(None, "", 0, "ValueError", "bad", (Frame("train.py", 3, "load"),))
    ends = {
        0: End("raised", error=error, step=2),
        1: End("killed", signal="SIGKILL"),
        2: End("exited", code=3),
        3: End("exited"),
        4: End("stalled", stack=(Frame("train.py", 9, "read"),)),
        5: End(),
    }
    group = Group("0", tuple(ends), "default_pg")
    records = {rank: Record(rank, record(rank, [group], []).program, (group,), end) for rank, end in ends.items()}
    result = evidence(records, {rank: RankProgress(0, None) for rank in ends}, {"strategy": {"name": "ddp"}})
    assert result.run is not None and result.run.status is not None
    assert (result.run.status.state, result.run.get("strategy.name"), result.world_size) == ("failed", "ddp", 6)
    by_rank = {item.rank: (item.type, item.signal, item.exit_code, item.step) for item in result.errors}
    assert by_rank == {
        0: ("ValueError", None, None, 2),
        1: ("", "SIGKILL", None, None),
        2: ("", None, 3, None),
    }
    assert list(result.run.events) == [3], "a good end, of the rank that came to it"
    assert [(stack.rank, stack.threads[0].main, stack.threads[0].frames[0].line) for stack in result.stacks] == [
        (4, True, 9)
    ]
    assert [item.rank for item in result.files["simulation"]] == [0, 2, 3, 4, 5], (
        "a killed rank without calls left nothing"
    )


def test_what_a_rank_wrote_to_standard_error_is_read() -> None:
    text = 'Traceback (most recent call last):\n  File "train.py", line 7, in load\n    read()\nKeyError: 3\n'
    item = Record(0, record(0, [WORLD], []).program, (WORLD,), End(), errors=text)
    result = evidence({0: item}, {0: RankProgress(0, None)}, {})
    assert [(error.rank, error.type, error.frames[0].line) for error in result.errors] == [(0, "KeyError", 7)]


def test_stacks_say_what_is_torchs() -> None:
    text = "/x/site-packages/torch/_tensor.py:5\tTensor.backward\n/job/train.py:3\tLoop.step"
    assert stack_of(text) == ((Frame("/job/train.py", 3, "Loop.step"),), True)
    assert frame_of("/job/a:b.py:12\tf") == Frame("/job/a:b.py", 12, "f")


def test_fewer_calls_of_each_rank_where_there_are_many() -> None:
    ranks = tuple(range(module.MANY_RANKS + 1))
    group = Group("0", ranks)
    steps: list[Step] = blocking(*[("call", 0, "all_reduce", 8)] * (module.LAST_CALLS_OF_MANY + 1))
    records = {rank: record(rank, [group], steps if rank else steps[:-2]) for rank in ranks}
    result = evidence(records, match(records.values()).progress, {})
    assert len(result.files["simulation"][1].load()[0].calls) == module.LAST_CALLS_OF_MANY
