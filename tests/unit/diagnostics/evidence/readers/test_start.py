"""How far a rank was on its way to its process group."""

import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.evidence.calls import own_line
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.start import read
from tests.fuzz.seeds import START


def write(folder: Path, **changed: Any) -> Path:
    path = folder / "rank_00000.json"
    path.write_text(json.dumps({**json.loads(START), **changed}), encoding="utf-8")
    return path


def test_state_and_times(tmp_path: Path) -> None:
    fact = read(write(tmp_path), "start/rank_00000.json", Limits())
    assert (fact.kind, fact.rank, fact.time_s, fact.fields["state"]) == ("start", 0, 2.0, "meets")
    assert (fact.rank, fact.fields["state"], fact.text) == (0, "meets", "")
    assert {name: fact.fields[name] for name in ("nranks", "pid", "host", "since_s", "worked_s")} == {
        "nranks": 2, "pid": 7, "host": "h", "since_s": 1.0, "worked_s": 1.5
    }  # fmt: skip


def test_the_scripts_own_line(tmp_path: Path) -> None:
    inner = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    frames = [[inner, 99, "init_process_group"], ["/w/train.py", 3, "main"]]
    frame = own_line(read(write(tmp_path, frames=frames), "f", Limits()).fields["frames"])
    assert frame is not None and (frame.file, frame.line) == ("/w/train.py", 3)
    assert own_line(read(write(tmp_path, frames=frames[:1]), "f", Limits()).fields["frames"]) is None


@pytest.mark.parametrize(
    "changed",
    [{"world_size": 1_000_001}, {"rank": 2}, {"rank": True}, {"rank": -1}, {"world_size": "2"}, {"state": "asleep"},
     {"since_s": -1}, {"alive_s": 1e300}, {"worked_s": None}, {"pid": [[7]]}, {"pid": "7"}],
)  # fmt: skip
def test_a_record_that_contradicts_itself_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a record of a rank's start"):
        read(write(tmp_path, **changed), "f", Limits())


def test_frames_of_other_types_are_left_out(tmp_path: Path) -> None:
    frames = [5, ["a"], ["/w/t.py", "3", "f"], ["/w/t.py", 3, "f"]]
    assert len(read(write(tmp_path, frames=frames), "f", Limits()).fields["frames"]) == 1
    assert read(write(tmp_path, frames="x"), "f", Limits()).fields["frames"] == ()


HONEST = START.encode()
DAMAGED = HONEST[:-20]
