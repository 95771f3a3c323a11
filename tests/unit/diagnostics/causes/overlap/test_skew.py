from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import text_of
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import LATE, ddp
from tests.unit.diagnostics.causes.overlap.helpers import finding_of, roots, scenario, status


def test_one_rank_alone_makes_no_claim_about_others(tmp_path: Path, detect: Any) -> None:
    paths = write(scenario("longer_compute").build(), tmp_path)
    for rank in (0, LATE):
        detection = detect(paths[rank])
        found = {one.cause: one for one in detection.findings}
        assert found["overlap.skew"].status == "undecided"
        assert "only one rank" in text_of(found["overlap.skew"]).summary
        assert text_of(found["overlap.skew"]).missing
        assert not [
            one for one in detection.findings if one.status == "confirmed" and one.ranks and one.ranks != (rank,)
        ]


def test_a_rank_that_was_not_traced_may_be_the_late_one(tmp_path: Path, detect: Any) -> None:
    paths = write(scenario("longer_compute").build(), tmp_path)
    assert status(detect(*paths[:LATE]))["overlap.skew"] == "undecided"


def test_several_late_ranks_are_all_named(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(ranks=6), scale=lambda rank: 1.4 if rank in (1, 4) else 1.0), tmp_path)
    (finding,) = (one for one in detect(tmp_path).findings if one.cause == "overlap.skew")
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (1, 4), (0, 2, 3, 5))
    assert "computes longer" in text_of(finding).summary


def test_skew_costs_what_the_late_rank_adds(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(), scale=lambda rank: 1.4 if rank == LATE else 1.0), tmp_path / "late")
    write(ddp(Simulator()), tmp_path / "even")
    late, even = detect(tmp_path / "late"), detect(tmp_path / "even")
    (finding,) = (one for one in late.findings if one.cause == "overlap.skew")
    saved = late.measures["overlap"]["step_ms"] - even.measures["overlap"]["step_ms"]
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(saved, rel=0.05)


def test_ranks_that_are_late_in_turn_are_blamed_together(tmp_path: Path, detect: Any) -> None:
    """None of them is late in most collectives, and together they are: all three are blamed, nobody else."""
    sim = Simulator(ranks=8)
    turn = [0]

    def next_step() -> None:
        turn[0] += 1

    write(ddp(sim, scale=lambda rank: 1.5 if rank == (0, 3, 6)[turn[0] % 3] else 1.0, per_step=next_step), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.skew")
    assert (finding.status, finding.ranks) == ("confirmed", (0, 3, 6))
    assert text_of(finding).summary.startswith("Ranks 0, 3 and 6 arrive late")


def test_lateness_that_wanders_over_all_ranks_blames_nobody(tmp_path: Path, detect: Any) -> None:
    sim = Simulator(ranks=3)
    turn = [-1]

    def next_step() -> None:
        turn[0] += 1

    write(ddp(sim, scale=lambda rank: 1.5 if rank == turn[0] else 1.0, per_step=next_step), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.skew")
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (), (0, 1, 2))


def test_a_rank_that_is_late_less_than_the_latest_is_blamed_with_it(tmp_path: Path, detect: Any) -> None:
    """Rank 0 brings about two thirds of the lateness and rank 6 the rest."""
    sim = Simulator(ranks=8)
    turn = [0]

    def next_step() -> None:
        turn[0] += 1

    write(ddp(sim, scale=lambda rank: 1.5 if rank == (0, 6, 0)[turn[0] % 3] else 1.0, per_step=next_step), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.skew")
    assert (finding.status, finding.ranks) == ("confirmed", (0, 6))
    assert "work imbalance" in text_of(finding).summary


def test_hosts_that_launch_late_are_why_the_group_waits(tmp_path: Path, detect: Any) -> None:
    """Ranks 0 and 6 are limited by their hosts; the six others wait for them, and that is a consequence."""
    sim = Simulator(ranks=8, launch_us=lambda rank: 900.0 if rank in (0, 6) else 8.0)
    write(ddp(sim, transfer=1500.0), tmp_path)
    detection = detect(tmp_path)
    assert roots(detection) == [("overlap.host_bound", (0, 6))]
    assert finding_of(detection, "overlap.host_bound").victims == (1, 2, 3, 4, 5, 7)
    skew = finding_of(detection, "overlap.skew")
    assert (skew.status, skew.ranks) == ("confirmed", (0, 6))
    assert "launches work late" in text_of(skew).summary
