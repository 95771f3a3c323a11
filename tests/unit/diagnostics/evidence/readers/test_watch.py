"""What the watch of a job left: its verdict, or that the command ended well."""

import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import FINISHED
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact, RankError
from diagnostics.evidence.readers.watch import ENDED_WELL, IN_ORDER, VERDICT, ended_well, read, recognise
from dtk.record.heartbeat import HeartbeatFile

STALL = {"kind": "stall", "reason": "nothing moved", "culprits": [], "time_s": 1.5}
DONE = {"kind": FINISHED, "command": ["python", "t.py"], "time_s": 2.5}


def write(folder: Path, value: Any) -> Path:
    path = folder / "watch.json"
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
    return path


def test_a_verdict_and_a_good_end(tmp_path: Path) -> None:
    verdict = read(write(tmp_path, STALL), "watch.json", Limits())
    done = read(write(tmp_path, DONE), "watch.json", Limits())
    assert (verdict.kind, verdict.text, verdict.time_s) == (VERDICT, "nothing moved", 1.5)
    assert (done.kind, done.time_s) == (ENDED_WELL, 2.5)
    evidence = Evidence(tmp_path, Limits(), facts=[verdict])
    assert not ended_well(evidence)
    evidence.facts.append(done)
    assert ended_well(evidence)


@pytest.mark.parametrize(
    "failed",
    [
        {"facts": [LogFact("start", 0, "start/rank_00000.json", 0, "", {"state": "meets"})]},
        {"errors": [RankError(1, "logs/attempt_0/rank_00001/error.json", 0, "ValueError", "bad batch")]},
    ],
)
def test_a_script_that_exits_with_0_though_its_ranks_failed_did_not_end_well(failed: dict[str, Any]) -> None:
    """As `python train.py & python train.py; wait` does."""
    well = LogFact(ENDED_WELL, None, "finished.json", 0, "", {})
    met = LogFact("start", 0, "start/rank_00000.json", 0, "", {"state": "met"})
    printed = RankError(1, "logs/node/stderr.log", 7, "ConnectionError", "retried")
    assert ended_well(Evidence(Path(), Limits(), facts=[well, met], errors=[printed]))
    assert not ended_well(Evidence(Path(), Limits(), **{**failed, "facts": [well, *failed.get("facts", [])]}))


def test_other_records_with_a_kind_are_not_the_watchs() -> None:
    assert recognise(json.dumps(STALL, indent=2).encode())
    assert recognise(json.dumps({"kind": "desync", "reason": "x"}).encode())
    assert not recognise(json.dumps({"kind": "about", "every_s": 1}).encode())
    assert not recognise(json.dumps({"kind": "stall", "step": 1}).encode())


@pytest.mark.parametrize("changed", [{"time_s": "x"}, {"time_s": -1}, {"time_s": 1e300}, {"reason": ["x"]}])
def test_a_record_that_contradicts_itself_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a record of the watch"):
        read(write(tmp_path, {**STALL, **changed}), "f", Limits())


def test_the_pauses_of_a_rank(tmp_path: Path) -> None:
    record = {"kind": "paused", "rank": 3, "pauses": [[5.0, 12.5], [40.0, 6.0]]}
    assert recognise(json.dumps(record, indent=2).encode())
    fact = read(write(tmp_path, record), "f", Limits())
    assert (fact.kind, fact.rank, fact.fields["pauses"]) == ("paused", 3, ((5.0, 12.5), (40.0, 6.0)))
    with pytest.raises(ValueError, match="not a record of a pause"):
        read(write(tmp_path, record | {"pauses": [[1.0]]}), "f", Limits())


@pytest.mark.parametrize(("region", "remaining"), [("end", True), (None, False), ("data", False)])
def test_the_last_beat_of_a_rank_says_whether_it_left_in_order(
    tmp_path: Path, region: str | None, remaining: bool
) -> None:
    (tmp_path / "heartbeat").mkdir()
    beats = HeartbeatFile(path := tmp_path / "heartbeat/rank_00002.json", attempt=0)
    beats.start()
    beats.close(region)
    assert recognise(path.read_bytes()) == remaining
    (tmp_path / "watch.json").write_text(json.dumps(STALL))
    facts = [fact for fact in gather(tmp_path, Limits()).facts if fact.kind == IN_ORDER]
    assert [fact.rank for fact in facts] == [2] * remaining and all(fact.time_s for fact in facts)


HONEST = json.dumps(STALL, indent=2).encode()
DAMAGED = HONEST[:-3]
