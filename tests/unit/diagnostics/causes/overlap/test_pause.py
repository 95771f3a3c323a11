from pathlib import Path
from typing import Any

from diagnostics.causes.overlap.pause import Pauses
from diagnostics.contract.findings import text_of
from tests.shared_data import shared_data
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import ddp
from tests.unit.diagnostics.causes.overlap.helpers import finding_of, scenario, status


def test_a_pause_in_every_step_is_no_late_launch(tmp_path: Path, detect: Any) -> None:
    write(scenario("late_host").build(), tmp_path)
    found = status(detect(tmp_path))
    assert (found["overlap.pause"], found["overlap.host_bound"]) == ("confirmed", "ruled_out")


def test_late_launches_all_over_the_step_are_no_pause(tmp_path: Path, detect: Any) -> None:
    write(scenario("slow_launches").build(), tmp_path)
    found = status(detect(tmp_path))
    assert (found["overlap.pause"], found["overlap.host_bound"]) == ("ruled_out", "confirmed")


def test_a_pause_says_what_lies_in_it(tmp_path: Path, detect: Any) -> None:
    sim = Simulator()
    write(ddp(sim, per_step=lambda: sim.host(40000.0, "save_checkpoint")), tmp_path)
    finding = finding_of(detect(tmp_path), "overlap.pause")
    assert finding.status == "confirmed"
    assert isinstance(finding.facts, Pauses) and finding.facts.within == "save_checkpoint"
    text = text_of(finding)
    assert "save_checkpoint" in text.summary and "torch.compile" not in text.remedies[0].change


def test_five_gaps_of_a_real_trace_are_pauses(detect: Any) -> None:
    found = detect(shared_data("traces/kineto_loader_w0"))
    assert status(found)["overlap.host_bound"] == "ruled_out"
    assert finding_of(found, "overlap.pause").status == "confirmed"
