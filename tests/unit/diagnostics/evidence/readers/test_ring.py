"""Rings as evidence: their calls in the common form, and files that are damaged or made to do harm."""

import random
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.limits import Limits, head
from diagnostics.evidence.readers.ring import RingFile, recognise
from diagnostics.evidence.ring.format import (
    FINISHED,
    GROUP,
    GROUPS_AT,
    HEADER,
    MAGIC,
    RECORD,
    STARTED,
    TABLE_HEAD,
    TEXT_HEAD,
    VERSION,
    file_bytes,
    format_ranks,
    parse,
    parse_ranks,
)
from tests.fuzz.seeds import ring as ring_file

TEXTS = [
    "0-1",
    "pg",
    "train.py:12\tstep",
    "backward",
    "broadcast",
    "all_gather_object",
    "float32",
    "[[4,2]]",
    "SUM",
    "send",
]
SLOTS = 8


def ring(records=(), groups=2, slots=SLOTS, texts=TEXTS, version=VERSION, ranks=1):
    """A file as `dtk.record.ring` writes it."""
    table_bytes = 4096
    data = bytearray(file_bytes(groups, slots, table_bytes))
    HEADER.pack_into(data, 0, MAGIC, version, 3, 8, 1, 4711, groups, slots, table_bytes, 100.0, b"node-1")
    GROUP.pack_into(data, GROUPS_AT, 2, ranks, 0, 0, 12, 11)
    table = b"".join(TEXT_HEAD.pack(len(text)) + text.encode() for text in texts)
    at = len(data) - table_bytes
    TABLE_HEAD.pack_into(data, at, TABLE_HEAD.size + len(table))
    data[at + TABLE_HEAD.size : at + TABLE_HEAD.size + len(table)] = table
    for fields in records:
        RECORD.pack_into(data, GROUPS_AT + groups * GROUP.size + (fields[0] - 1) % slots * RECORD.size, *fields)
    return bytes(data)


def record(number, op=5, user_op=0, root=-1, state=FINISHED, p2p=0, last=None, amount=32):
    texts = (0, 3, 4, op, user_op, 7)
    numbers = (number, 8, amount, 99)
    return (number, 5.5, 6.5, 2, *texts, root, 0, 8, 0, 9, 0, *numbers, state, p2p, 0, 0, 0, last or number)


@pytest.fixture
def load(tmp_path):
    def load(data):
        path = tmp_path / "rank_00003.ring"
        path.write_bytes(data)
        return RingFile(path, path.name, 3, Limits()).load()

    return load


def test_calls_in_the_common_form(load):
    (dump,) = load(ring([record(1, user_op=6, root=1), record(2, op=10, root=1, p2p=1, state=STARTED)]))
    assert (dump.rank, dump.recorder, dump.world_size, dump.attempt, dump.damaged) == (3, "dtk", 8, 1, 0)
    collective, send = dump.calls
    assert collective.wire == ("broadcast", (32,), ("float32",), 1, "SUM")
    assert collective.text == "all_gather_object (broadcast [4, 2] float32 SUM root 1)"
    assert (collective.site.file, collective.site.line, collective.site.function) == ("train.py", 12, "step")
    assert (collective.done, collective.step, collective.region) == (True, 2, "backward")
    assert (send.p2p, send.peer, send.done, send.wire.root) == ("send", 1, False, None)
    assert dump.members == {collective.key: (0, 1)}
    assert dump.counters == {collective.key: (12, 11)}


def test_recognised_by_content(tmp_path):
    path = tmp_path / "some name"
    path.write_bytes(ring())
    assert recognise(head(path))
    assert not recognise(b"\x80\x04 pickle")


def test_order_is_by_id_and_torn_records_are_left_out(load):
    (dump,) = load(ring([record(10), record(9), record(11), record(12, last=4)]))
    assert [call.seq for call in dump.calls] == [9, 10, 11]
    assert dump.damaged == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        ring()[:-1],
        ring()[:GROUPS_AT],
        ring(version=2),
        MAGIC + b"\xff" * 8000,
        b"\0" * 9000,
    ],
    ids=["empty", "magic", "cut", "header", "newer", "ones", "zeros"],
)
def test_what_is_no_ring_is_refused(load, data):
    with pytest.raises(ValueError, match="ring"):
        load(data)


def test_a_hostile_ring_stays_small(load):
    """1,000 groups of a million ranks each, and texts that point nowhere."""
    data = bytearray(
        ring([record(1, op=4_000_000)], groups=1000, texts=["0-1048575", *[f"0-{10**6 + i}" for i in range(200)]])
    )
    for index in range(1000):
        GROUP.pack_into(data, GROUPS_AT + index * GROUP.size, 1, 1 + index % 200, 0, 0, 1, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (dump,) = load(bytes(data))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10
    assert dump.calls[0].wire.op == ""


@given(ranks=st.lists(st.integers(0, 40), unique=True, max_size=12).map(tuple))
def test_lists_of_ranks_come_back(ranks):
    assert parse_ranks(format_ranks(ranks)) == ranks


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0-99999999", "5-9/0", "1,,2", "٣", "0-8388607"])
def test_what_is_no_list_of_ranks_is_empty(text):
    assert parse_ranks(text) == ()


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_ring_never_crashes_the_reader(seed):
    rng = random.Random(seed)
    data = bytearray(ring([record(i) for i in range(1, 7)]))
    for _ in range(rng.randint(1, 40)):
        data[rng.choice([rng.randrange(200), rng.randrange(len(data))])] = rng.randrange(256)
    if rng.random() < 0.2:
        del data[rng.randrange(len(data)) :]
    try:
        parse(bytes(data))
    except ValueError as problem:
        assert str(problem)


def test_the_common_form_takes_whatever_a_damaged_ring_says(tmp_path):
    rng = random.Random(1)
    path = Path(tmp_path / "r.ring")
    for _ in range(300):
        data = bytearray(ring([record(i) for i in range(1, 7)]))
        for _ in range(20):
            data[rng.randrange(GROUPS_AT, len(data))] = rng.randrange(256)
        path.write_bytes(data)
        (dump,) = RingFile(path, path.name, 3, Limits()).load()
        assert all(call.text is not None for call in dump.calls)


HONEST = ring_file()
DAMAGED = HONEST[: HEADER.size + 8]
