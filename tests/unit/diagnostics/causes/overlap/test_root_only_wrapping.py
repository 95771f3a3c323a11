"""All parameters are gathered as one unit before any compute."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import text_of
from tests.trace_generator import write
from tests.unit.diagnostics.causes.overlap.helpers import dtk_run, finding_of, scenario

CAUSE = "overlap.root_only_wrapping"


def test_one_gather_of_everything_is_found(tmp_path: Path, detect: Any) -> None:
    write(scenario("root_only").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert finding.status == "confirmed" and "as one unit of 400 MiB" in text_of(finding).summary
    assert "`fully_shard` on every block" in text_of(finding).remedies[0].change


def test_a_run_of_dtk_gets_the_override_unless_its_model_is_the_users_own(tmp_path: Path, detect: Any) -> None:
    write(scenario("root_only").build(), tmp_path)
    run = dtk_run({"strategy": {"blocks_per_unit": 0}})
    assert text_of(finding_of(detect(tmp_path, run=run), CAUSE)).remedies[0].change == "strategy.blocks_per_unit=1"
    own = dtk_run({"model": {"architecture": "custom"}, "strategy": {"blocks_per_unit": 1}})
    (remedy,) = text_of(finding_of(detect(tmp_path, run=own), CAUSE)).remedies
    assert remedy.kind == "code" and "block" in remedy.change, "dtk did not find the blocks of that model"


def test_units_of_their_own_rule_it_out(tmp_path: Path, detect: Any) -> None:
    write(scenario("fsdp, few units").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert (finding.status, text_of(finding).measured) == ("ruled_out", "6 gathers in a forward pass")


def test_without_a_trace_it_is_open(detect: Any) -> None:
    finding = finding_of(detect(), CAUSE)
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing
