"""Entries of the flight recorder in the forms that torch has written, each as the same call."""

import pytest

from diagnostics.evidence.calls import GroupKey
from diagnostics.evidence.flight_entries import dump

DEFAULT = GroupKey("nccl", "0", "default_pg")


def entry(name="nccl:all_reduce", seq=1, **fields):
    return {
        "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": seq, "profiling_name": name,
        "input_sizes": [[8]], "input_dtypes": ["Float"], "output_sizes": [[8]], "output_dtypes": ["Float"],
        "time_created_ns": 2_000_000_000, "state": "completed", "timeout_ms": 600_000, "frames": [], **fields,
    }  # fmt: skip


def of(*entries, **value):
    return dump({"entries": list(entries), **value}, 1, "flight/rank_1.pickle")


def test_a_collective():
    (call,) = of(entry()).calls
    assert (call.key, call.seq, call.text) == (DEFAULT, 1, "all_reduce [8] float32")
    assert (call.done, call.created_s, call.timeout_s) == (True, 2.0, 600.0)
    assert call.wire.amounts == (8,)


def test_numbers_may_be_written_as_texts():
    (call,) = of(entry(seq="3", time_created_ns="5000000000", timeout_ms="1000")).calls
    assert (call.seq, call.created_s, call.timeout_s) == (3, 5.0, 1.0)


def test_what_was_retired_is_done_whatever_gloo_writes_as_its_state():
    done, open_ = of(entry(state="scheduled", retired=True), entry(seq=2, state="started")).calls
    assert (done.done, open_.done) == (True, False)


@pytest.mark.parametrize(
    "damage",
    [{"collective_seq_id": None}, {"collective_seq_id": -1}, {"process_group": []}, {"profiling_name": 3},
     {"input_sizes": [["x"]]}, {"input_sizes": [[1 << 60]]}, {"input_sizes": [[True]]}],
)  # fmt: skip
def test_an_entry_that_says_nothing_makes_the_dump_useless(damage):
    with pytest.raises(ValueError, match="1 of 2 entries could not be parsed"):
        of(entry(), entry(seq=2, **damage))


def test_entries_that_are_no_list():
    with pytest.raises(ValueError, match="a dict where a list belongs"):
        dump({"entries": {}}, 0, "f")
    with pytest.raises(ValueError, match="1 of 1 entries"):
        of("all_reduce")


@pytest.mark.parametrize(
    ("name", "sizes", "amounts"),
    [
        ("nccl:broadcast", ([[4, 2]], [[9]]), (8,)),
        ("nccl:scatter", ([], [[3]]), (3,)),
        ("nccl:scatter", ([[5], [5]], []), (5, 5)),
        ("nccl:gather", ([[6]], [[6], [6]]), (6,)),
        ("nccl:all_to_all", ([[7]], [[7]]), ()),
        ("nccl:all_reduce_barrier", ([[1]], [[1]]), ()),
        ("nccl:all_reduce", ([[]], [[]]), (1,)),
    ],
)
def test_what_ranks_must_agree_on(name, sizes, amounts):
    """Of a rooted operation only the side that every rank gives; of all_to_all nothing."""
    (call,) = of(entry(name, input_sizes=sizes[0], output_sizes=sizes[1])).calls
    assert call.wire.amounts == amounts


CONFIG = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"},
    "7": {"name": "7", "desc": "tp", "ranks": [1, 2]},
}


def test_groups_and_the_number_of_ranks():
    read = of(entry(), pg_config=CONFIG)
    assert read.members == {DEFAULT: (0, 1, 2), GroupKey("nccl", "7", "tp"): (1, 2)}
    assert read.world_size == 3
    assert read.recorder == "nccl"


def test_a_transfer_names_its_peer_by_global_rank():
    tp = entry("nccl:recv 0<-1", pg_id=1, process_group=["7", "tp"], is_p2p=True, p2p_seq_id=4)
    (call,) = of(tp, pg_config=CONFIG).calls
    assert (call.p2p, call.peer, call.seq) == ("recv", 2, 4)
    (unknown,) = of(entry("nccl:send 1->0", process_group=["9", "pp"], is_p2p=True)).calls
    assert (unknown.p2p, unknown.peer) == ("send", None), "a rank in a group without members is no global one"
    (default,) = of(entry("nccl:send 1->0", is_p2p=True)).calls
    assert default.peer == 0
    (any_,) = of(entry("nccl:recv 1<-?", is_p2p=True)).calls
    assert any_.peer is None


def gloo(ranks):
    return of(entry("gloo:all_reduce"), pg_config={"": {"name": "", "desc": "", "ranks": ranks}})


def test_gloos_one_nameless_entry():
    """It is that of the group joined last, and without ranks for one that is not the default."""
    assert (gloo("[0, 1]").only_default_group, gloo("[0, 1]").world_size) == (True, 2)
    assert (gloo("[]").only_default_group, gloo("[]").world_size) == (None, None)
    assert of(entry(), pg_config=CONFIG).only_default_group is None


def test_groups_between_which_a_rank_joined_none():
    later = [entry(seq=n, pg_id=n, process_group=[name, "tp"]) for n, name in ((1, "3"), (2, "8"), (5, "12"))]
    assert of(*later).outside == [(0, 3), (3, 8)]
    assert of(entry(process_group=["0", "default_pg"])).outside == []


STATUS = {"0": {"last_enqueued_collective": 5, "last_completed_collective": 4},
          1: {"last_enqueued_collective": "2", "last_completed_collective": -1}, "x": {}, 3: "damaged"}  # fmt: skip


def test_counters_are_of_the_group_with_that_id():
    read = of(entry(), pg_config=CONFIG, pg_status=STATUS)
    assert read.counters == {DEFAULT: (5, 4), GroupKey("nccl", "7", "tp"): (2, -1)}, (
        "as many ids as names: they pair up"
    )
    assert of(entry(), pg_status=STATUS).counters == {DEFAULT: (5, 4)}, "without a config only what an entry names"


def test_ids_that_an_entry_contradicts_do_not_pair_up():
    own = entry(pg_id=0, process_group=["7", "tp"])
    assert of(own, pg_config=CONFIG, pg_status=STATUS).counters == {GroupKey("nccl", "7", "tp"): (5, 4)}


@pytest.mark.parametrize(
    ("value", "recorder"), [({"nccl_version": "2.26"}, "nccl"), ({"comm_lib_version": "2.26"}, "nccl"), ({}, "gloo")]
)
def test_whose_dump_it_is_without_entries(value, recorder):
    assert of(**value).recorder == recorder
    assert dump({**value, "entries": None}, 0, "f").calls == []


def test_ranks_of_a_group_are_plausible_numbers():
    ranks = [3, "1", -2, 1 << 30, 1.5, 0]
    read = of(entry(), pg_config={"0": {"desc": "default_pg", "ranks": ranks}, "1": "damaged", "2": {"ranks": 7}})
    assert read.members == {DEFAULT: (0, 3)}
