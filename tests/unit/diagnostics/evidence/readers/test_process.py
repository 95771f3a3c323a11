"""Records of `dtk attach`: what a rank's process showed from outside."""

import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.process import READER, Moment, read

LOOK = [[1.0, "S", 0.5, 3, "futex_do_wait"], [1.1, "S", 0.5, 4, "futex_do_wait"]]
RECORD = {
    "dtk_process": 1,
    "rank": 1,
    "world_size": 2,
    "last": [9.0, "S", 0.5, 4, "futex_do_wait"],
    "host": "h",
    "looks": [LOOK, LOOK],
    "call": {"op": "all_reduce", "group": "default"},
    "counters": [{"file": "/w/train.py", "function": "main", "numbers": {"step": 7}}],
}


def write(folder: Path, **changed: Any) -> Path:
    path = folder / "rank_00001.json"
    path.write_text(json.dumps({**RECORD, **changed}), encoding="utf-8")
    return path


def test_looks_call_and_counters(tmp_path: Path) -> None:
    path = write(tmp_path, connections={"0": 3})
    assert READER.recognise(path.read_bytes()) and READER.recognise(json.dumps(RECORD, indent=2).encode())
    contents = read(path, "process/rank_00001.json", Limits())
    (fact,) = contents.facts
    assert (fact.kind, fact.rank, fact.time_s) == ("process", 1, 9.0) and not contents.errors
    assert fact.fields["looks"][0][1] == Moment(1.1, "S", 0.5, 4, "futex_do_wait")
    assert fact.fields["counters"] == {("/w/train.py", "main"): {"step": 7}}
    assert fact.fields["connections"] == {0: 3}
    assert READER.world_size(path.read_bytes()) == 2


def test_an_exit_code_says_how_the_rank_ended(tmp_path: Path) -> None:
    path = write(tmp_path, last=[9.0, "", 0, 0, ""], looks=[], exit_code=-9)
    assert [error.exit_code for error in read(path, "f", Limits()).errors] == [-9]


@pytest.mark.parametrize(
    "changed",
    [{"rank": 2}, {"rank": "x"}, {"world_size": None}, {"last": [1.0]}, {"last": ["1", "S", 0, 0, ""]}, {"looks": 5},
     {"looks": [[1, 2]]}, {"looks": [[LOOK[0], [1e300, "S", 0, 0, ""]]]}, {"call": []}, {"counters": [1]},
     {"connections": [1]}, {"connections": {"a": 1}},
     {"counters": [{"file": "f", "function": "g", "numbers": {"a": "b"}}]}],
)  # fmt: skip
def test_a_record_that_contradicts_itself_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a record of a rank's process"):
        read(write(tmp_path, **changed), "f", Limits())


HONEST = json.dumps(RECORD).encode()
DAMAGED = HONEST[:-20]
