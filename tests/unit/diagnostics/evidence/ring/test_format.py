"""The ring's file, byte by byte: what is whole is read, what is torn is counted, what is foreign is refused."""

import struct

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.ring import format as layout
from diagnostics.evidence.ring.format import FINISHED, STARTED, file_bytes, parse

GROUPS, SLOTS, TABLE = 4, 8, 512
RECORDS_AT = layout.GROUPS_AT + GROUPS * layout.GROUP.size
TABLE_AT = RECORDS_AT + SLOTS * layout.RECORD.size
TEXTS = ["tp", "0-3", "tensor parallel", "all_reduce", "float32", "SUM", "[[8]]", "/job/train.py:12\tstep", "forward"]
NAME, RANKS, DESC, OP, DTYPE, REDUCE, SIZES, SITE, REGION = range(1, 10)


def ring(*records, version=layout.VERSION, groups=((NAME, RANKS, DESC, 0, 5, 4),), samples=()):
    data = bytearray(file_bytes(GROUPS, SLOTS, TABLE))
    about = (version, 1, 4, 2, 77, GROUPS, SLOTS, TABLE)
    layout.HEADER.pack_into(data, 0, layout.MAGIC, *about, 100.0, b"node7")
    at = TABLE_AT + layout.TABLE_HEAD.size
    for text in TEXTS:
        layout.TEXT_HEAD.pack_into(data, at, len(text))
        at += layout.TEXT_HEAD.size
        data[at : at + len(text)] = text.encode()
        at += len(text)
    layout.TABLE_HEAD.pack_into(data, TABLE_AT, at - TABLE_AT)
    for index, group in enumerate(groups):
        layout.GROUP.pack_into(data, layout.GROUPS_AT + index * layout.GROUP.size, *group)
    for index, sample in enumerate(samples):
        layout.SAMPLE.pack_into(data, layout.SAMPLES_AT + index * layout.SAMPLE.size, *sample)
    for values in records:
        layout.RECORD.pack_into(data, RECORDS_AT + (values[0] - 1) % SLOTS * layout.RECORD.size, *values)
    return bytes(data)


def record(number, state=FINISHED, group=0, root=-1, step=3, end=None, site=SITE, p2p=0):
    return (
        *(number, 10.0, 11.0, step, group, site, REGION, OP, 0, DTYPE, root, 0, SIZES, SIZES, REDUCE, 0),
        *(number, 8, 8, 99, state, p2p, 0, 0, 0, number if end is None else end),
    )


def test_an_honest_ring():
    dump = parse(ring(record(1), record(2, STARTED)))
    assert (dump.rank, dump.world_size, dump.attempt, dump.pid, dump.host) == (1, 4, 2, 77, "node7")
    assert (dump.sound, dump.torn) == (True, 0)
    (group,) = dump.groups
    assert (group.name, group.desc, group.ranks) == ("tp", "tensor parallel", (0, 1, 2, 3))
    assert (group.last_started, group.last_finished) == (5, 4)
    first, second = dump.records
    assert (first.op, first.dtype, first.reduce_op, first.input_sizes) == ("all_reduce", "float32", "SUM", "[[8]]")
    assert (first.file, first.line, first.function, first.region) == ("/job/train.py", 12, "step", "forward")
    assert (first.state, second.state, first.seq, first.signature) == ("finished", "started", 1, 99)
    assert (first.root, first.step, first.is_p2p) == (None, 3, False)


def test_the_newest_records_of_a_ring_that_went_round():
    dump = parse(ring(*(record(number) for number in range(5, 5 + SLOTS))))
    assert [item.id for item in dump.records] == list(range(5, 13))


@pytest.mark.parametrize(
    "torn", [record(2, end=1), record(2, state=0), record(2, state=9), record(2, group=3), record(2, group=99)]
)
def test_a_record_that_was_caught_half_written_is_counted(torn):
    dump = parse(ring(record(1), torn))
    assert ([item.id for item in dump.records], dump.torn) == ([1], 1)


def test_a_record_in_the_place_of_another_is_torn():
    data = bytearray(ring(record(1)))
    at = RECORDS_AT + 3 * layout.RECORD.size
    layout.RECORD.pack_into(data, at, *record(1))
    assert parse(bytes(data)).torn == 1


def test_texts_that_are_not_there_are_empty():
    (item,) = parse(ring(record(1, site=500))).records
    assert (item.file, item.line, item.function) == ("", 0, "")


def test_samples_come_most_often_first():
    samples = parse(ring(samples=[(SITE, 3, 7.0), (REGION, 5, 1.0), (SITE, 0, 0.0), (SITE, 9, 8.0)])).samples
    assert [(sample.times, sample.file, sample.last_s) for sample in samples] == [
        (9, "/job/train.py", 8.0),
        (3, "/job/train.py", 7.0),
    ]


def test_a_ring_that_missed_a_call_says_so():
    data = bytearray(ring())
    data[layout.UNSOUND_AT] = 1
    assert not parse(bytes(data)).sound


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a ring"),
        (b"PK\x03\x04" * 2000, "not a ring"),
        (layout.MAGIC + b"\0" * 100, "cut off in its header"),
        (ring(version=9), "ring of version 9; this reads version 1"),
        (ring()[:-1], "where its header says"),
        (ring() + b"\0", "where its header says"),
    ],
)
def test_what_is_no_ring_is_refused(data, why):
    with pytest.raises(ValueError, match=why):
        parse(data)


@given(
    st.lists(
        st.tuples(st.integers(layout.HEADER.size, file_bytes(GROUPS, SLOTS, TABLE) - 1), st.integers(0, 255)),
        max_size=40,
    )
)
@settings(max_examples=100)
def test_damage_behind_the_header_is_never_a_crash(damage):
    data = bytearray(ring(record(1), record(2), samples=[(SITE, 3, 7.0)]))
    for at, value in damage:
        data[at] = value
    try:
        dump = parse(bytes(data))
    except (ValueError, struct.error) as problem:
        assert isinstance(problem, ValueError), "struct's own error would be a crash"
        return
    assert len(dump.records) + dump.torn <= SLOTS
