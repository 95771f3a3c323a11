"""The parent: what it makes of the ranks' lines, which rank it names when one dies, how two sides become a ratio."""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from dtk.bench import measure as module
from dtk.bench.measure import Launch, Leader, Team, _report as report_of, follow_leader, measure
from dtk.bench.model import Side, Spec, as_json, loads
from dtk.launch.children import Children, Failed, culprit
from tests.unit.bench.lines import LINES

SPEC = Spec(
    operations=("all_reduce",),
    sizes_bytes=(1024,),
    dtype="float32",
    device="cpu",
    backend="gloo",
    passes=0,
    warm_up=1,
    calls=20,
    seconds=1.0,
    timeout_s=60.0,
)


class Pretended:
    """Two ranks without torch that end as they are told."""

    world_size = 2

    def __init__(self, end: str = "", victim: int = 1) -> None:
        self.end, self.victim = end, victim
        self.started: list[tuple[Spec, dict[str, str]]] = []
        self.overs = 0

    def start(self, spec: Spec, variables: Mapping[str, str]) -> Children:
        self.started.append((spec, dict(variables)))
        environments = {rank: {**os.environ, "RANK": str(rank)} for rank in range(2)}
        return Children(["-m", "tests.unit.bench.pretended_rank", self.end, str(self.victim)], environments)

    def elsewhere(self) -> list[Failed]:
        return []

    def over(self) -> None:
        self.overs += 1

    def close(self, code: int) -> None:
        pass


def silent(text: str) -> None:
    pass


def test_one_side_is_one_launch() -> None:
    team, said = Pretended(), list[str]()
    bench_report = measure(team, SPEC, [Side("auto")], 7, said.append)
    assert not bench_report.failure and team.overs == 1
    assert [spec.passes for spec, _ in team.started] == [7]
    (result,) = bench_report.results
    assert (result.time_s.median, result.time_s.count, result.wrong_elements) == (0.002, 3, 0)
    # 1,024 bytes in 2 ms, factor 2 (n - 1) / n = 1.
    assert result.algbw().median == pytest.approx(512e-6) == result.busbw(2).median
    assert bench_report.left_out[0]["operation"] == "send_recv"
    assert said == ["starting 2 ranks", "warm-up: all_reduce of 1 KiB", "repeat 1 of 3: all_reduce"]


def test_two_sides_take_turns_with_their_own_variables() -> None:
    team = Pretended()
    bench_report = measure(team, SPEC, [Side("a", {"X": "1"}), Side("b", {"X": "2"})], 2, silent)
    assert [variables["X"] for _, variables in team.started] == ["1", "2", "1", "2"]
    assert sum(spec.seconds for spec, _ in team.started) == pytest.approx(SPEC.seconds)
    assert [gain.ratio.count for gain in bench_report.gains] == [2]
    assert bench_report.results[0].time_s.median == 0.002, "the median of one launch's passes is one repeat"


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("kill", "was killed by SIGKILL"),
        ("raise", "failed: ValueError: a bad cable"),
        ("exit", "ended with exit code 3"),
    ],
)
@pytest.mark.parametrize("victim", [0, 1])
def test_the_rank_that_died_is_named_and_not_its_peer(end: str, text: str, victim: int) -> None:
    bench_report = measure(Pretended(end, victim), SPEC, [Side("auto")], 3, silent)
    assert bench_report.failure.startswith(f"rank {victim} {text}")
    assert bench_report.failure.endswith("at repeat 1 of 3: all_reduce") and "\n" not in bench_report.failure
    assert bench_report.results[0].time_s.count == 3, "what was measured until then is kept"
    assert as_json(bench_report)["failure"] == bench_report.failure


def test_a_rank_that_stands_still_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtk.bench.measure._LATER_S", 0.2)
    bench_report = measure(Pretended("stop"), replace(SPEC, timeout_s=0.5), [Side("auto")], 3, silent)
    assert bench_report.failure.startswith("no progress for ") and "all_reduce" in bench_report.failure


def test_ctrl_c_keeps_what_was_measured() -> None:
    def press(text: str) -> None:
        if text.startswith("repeat"):
            raise KeyboardInterrupt

    bench_report = measure(Pretended("stop"), SPEC, [Side("auto")], 3, press)
    assert bench_report.failure == "stopped by Ctrl-C"


def test_who_lost_another_rank_is_no_culprit() -> None:
    lost = Failed(0, "failed", "RuntimeError: Connection reset by peer", victim=True)
    assert culprit([lost, Failed(3, "failed", "ValueError: x", victim=False)]).rank == 3
    assert culprit([lost]).rank == 0


def launch(side: str, seconds: float) -> Launch:
    result = Launch(side)
    for line in LINES:
        result.take(line)
    result.passes = [{"all_reduce 1024": seconds * factor} for factor in (0.5, 1.0, 7.0)]
    return result


def test_a_gain_is_of_bandwidth_and_by_rounds() -> None:
    """b takes half the time while the machine becomes five times slower: twice the bandwidth, and told."""
    drift = (1.0, 2.0, 3.0, 4.0, 5.0)
    launches = [item for slow in drift for item in (launch("a", slow), launch("b", 0.5 * slow))]
    (gain,) = report_of(2, SPEC, [Side("a"), Side("b")], launches).gains
    assert gain.ratio.median == pytest.approx(2.0)
    assert gain.verdict == "faster"


def test_a_round_that_broke_off_is_no_pair() -> None:
    launches = [launch("a", 1.0), launch("b", 1.0), launch("a", 50.0)]
    (gain,) = report_of(2, SPEC, [Side("a"), Side("b")], launches).gains
    assert (gain.ratio.median, gain.ratio.count) == (1.0, 1)


def test_equal_sides_and_kept_variables_are_told() -> None:
    sides = [Side("a", {"X": "1"}, {"X": "9"}), Side("b", {"X": "2"}, {"X": "9"})]
    notes = " ".join(report_of(2, SPEC, sides, []).notes)
    assert "your X=9 is kept; a has 1" in notes and "every difference is noise" in notes


def test_a_spec_survives_the_way_to_the_rank() -> None:
    assert loads(SPEC.dumps()) == SPEC


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The store of two ranks, which start a small program instead of a measurement: it fails if it is told to."""
    program = tmp_path / "rank.py"
    program.write_text("import os, sys\nsys.exit(int(os.environ.get('EXIT', '0')))\n")
    monkeypatch.setattr(module, "RANK", (str(program),))
    monkeypatch.setattr(module, "POLL_S", 0.02)
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
