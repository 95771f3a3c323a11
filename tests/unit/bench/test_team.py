"""Ranks of torchrun: rank 0 says what to start, the others follow until it says the end."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from dtk.bench import team
from dtk.bench.team import Leader, Team, follow_leader
from tests.unit.bench.test_measure import SPEC


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The store of two ranks, which start a small program instead of a measurement: it fails if it is told to."""
    program = tmp_path / "rank.py"
    program.write_text("import os, sys\nsys.exit(int(os.environ.get('EXIT', '0')))\n")
    monkeypatch.setattr(team, "RANK", (str(program),))
    monkeypatch.setattr(team, "POLL_S", 0.02)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    return HashStore()


def launched(store: Any, leader: Leader, **variables: str) -> list[str]:
    """One launch of both ranks; what the leader hears of the other one's."""
    with leader.start(SPEC, variables) as children:
        ends_s = time.monotonic() + 20
        while not children.ended and time.monotonic() < ends_s:
            list(children.lines(0.02))
        while variables.get("EXIT") and not leader.elsewhere() and time.monotonic() < ends_s:
            time.sleep(0.02)
    heard = [f"rank {failed.rank} {failed.ended}" for failed in leader.elsewhere()]
    leader.over()
    return heard


@pytest.mark.timeout(60)
def test_the_others_start_what_rank_0_says_and_report_their_failures(store: Any) -> None:
    codes: list[int] = []
    follower = threading.Thread(target=lambda: codes.append(follow_leader(store)), daemon=True)
    follower.start()
    leader = Leader(store)
    assert launched(store, leader) == []
    (heard,) = launched(store, leader, EXIT="3")
    assert heard.startswith("rank 1 ended with exit code 3")
    assert launched(store, leader) == [], "failures belong to their launch"
    leader.close(7)
    follower.join(10)
    assert codes == [7] and store.add("heard", 0) == 1


def test_alone_there_is_nobody_elsewhere() -> None:
    alone = Team(2, 1)
    alone.over()
    alone.close(0)
    assert alone.elsewhere() == []
    children = alone.start(SPEC, {"NCCL_DEBUG": "WARN"})
    assert {env["RANK"] for env in children.environments.values()} == {"0", "1"}
    assert all(env["NCCL_DEBUG"] == "WARN" for env in children.environments.values())
