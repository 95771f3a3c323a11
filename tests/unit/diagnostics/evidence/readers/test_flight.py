"""Files of the flight recorder: recognised by content, chosen by form and backend, refused when damaged."""

import json
import os
import pickle
from pathlib import Path

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers import trace
from diagnostics.evidence.readers.flight import READER, FlightFile, recognise
from tests.fuzz.seeds import flight, trace as profiler_trace


def handle(folder: Path, name: str, data: bytes) -> FlightFile:
    path = folder / name
    path.write_bytes(data)
    return FlightFile(path, name, 0, Limits())


def as_json(backend: str = "nccl") -> bytes:
    return json.dumps(flight()).replace("nccl:", f"{backend}:").encode()


def black_box() -> bytes:
    return json.dumps({"schema_version": 1, "rank": 0, "time_s": 2.0, "recorders": {"host": flight()}}).encode()


def test_the_pg_config_in_a_trace_makes_no_dump_of_it() -> None:
    value = profiler_trace()
    value["distributedInfo"]["pg_config"] = [{"pg_name": "0", "pg_desc": "default_pg"}]
    head = json.dumps(value).encode()[:8192]
    assert trace.recognise(head) and not recognise(head)


def test_a_black_box_says_so_and_when_it_was_written(tmp_path: Path) -> None:
    (dump,) = handle(tmp_path, "rank_0.blackbox.json", black_box()).load()
    assert (dump.black_box, dump.time_s, dump.rank, len(dump.calls)) == (True, 2.0, 0, 12)


def test_a_pickle_is_preferred_to_json_and_both_to_a_black_box(tmp_path: Path) -> None:
    boxed = handle(tmp_path, "box", black_box())
    text = handle(tmp_path, "text", as_json())
    binary = handle(tmp_path, "binary", HONEST)
    groups = READER.groups
    assert groups is not None
    assert groups([boxed], False) == [[boxed]]
    assert groups([boxed, text], False) == [[text]]
    assert groups([boxed, text, binary], False) == [[binary]]


def test_each_backend_of_a_rank_keeps_a_dump(tmp_path: Path) -> None:
    nccl, gloo = handle(tmp_path, "a", as_json("nccl")), handle(tmp_path, "b", as_json("gloo"))
    assert READER.groups is not None
    assert READER.groups([nccl, gloo], False) == [[gloo], [nccl]]


def test_in_a_run_folder_the_watchdogs_own_dump_is_the_second_copy(tmp_path: Path) -> None:
    own, torchs = handle(tmp_path, "rank_0.pickle", HONEST), handle(tmp_path, "watchdog_0", HONEST)
    assert READER.groups is not None
    assert READER.groups([torchs, own], True) == [[own]]
    assert READER.groups([torchs], True) == [[torchs]]
    (both,) = READER.groups([torchs, own], False)
    assert len(both) == 2


def test_the_world_size_is_that_of_the_default_group() -> None:
    assert READER.world_size(b'"pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1, 2]"}}') == 3
    assert READER.world_size(b'"pg_config": {"1": {"desc": "mesh_dp", "ranks": "[0, 1]"}}') is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"entries"', pickle.dumps([1]), pickle.dumps({"a": 1})])
def test_what_is_no_dump_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        handle(tmp_path, "x", data).load()


def test_deep_nesting_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        handle(tmp_path, "x", b'{"entries": ' + b"[" * 100_000).load()


HONEST = pickle.dumps(flight(), protocol=4)
DAMAGED = HONEST[: len(HONEST) // 2]


def test_a_file_that_nobody_can_have_copied_tells_when_it_was_written(tmp_path: Path) -> None:
    file = handle(tmp_path, "tr_0", pickle.dumps(json.loads(as_json())))
    (dump,) = file.load()
    for later_s, expected in ((0.4, True), (8.0, True), (3600.0, False)):
        os.utime(file.path, (dump.last_s() + later_s, dump.last_s() + later_s))
        (again,) = file.load()
        assert (again.time_s == pytest.approx(dump.last_s() + later_s)) if expected else again.time_s is None
