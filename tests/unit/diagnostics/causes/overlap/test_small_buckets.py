"""Gradients are reduced in many tiny buckets."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import text_of
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import ddp
from tests.unit.diagnostics.causes.overlap.helpers import dtk_run, finding_of, scenario

CAUSE = "overlap.small_buckets"


def test_tiny_reductions_are_found_and_a_larger_cap_is_advised(tmp_path: Path, detect: Any) -> None:
    write(scenario("tiny_buckets").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert finding.status == "confirmed" and "in 120 tiny portions" in text_of(finding).summary
    assert "fixed cost of a collective about" in str(finding.evidence[1].detail)
    (remedy,) = text_of(finding).remedies
    assert remedy.kind == "code" and remedy.change.startswith("raise `bucket_cap_mb`")


def test_the_configured_cap_is_named_and_overridden(tmp_path: Path, detect: Any) -> None:
    write(scenario("tiny_buckets").build(), tmp_path)
    text = text_of(finding_of(detect(tmp_path, run=dtk_run({"strategy": {"bucket_cap_mb": 0.1}})), CAUSE))
    assert "(bucket_cap_mb is 0.1)" in text.summary
    assert text.remedies[0].change.startswith("strategy.bucket_cap_mb=")


def test_many_reductions_of_unknown_size_are_neither_small_buckets_nor_too_many_bytes(
    tmp_path: Path, detect: Any
) -> None:
    write(ddp(Simulator(), buckets=120, size=0, transfer=60_000.0), tmp_path)
    detection = detect(tmp_path)
    for cause in (CAUSE, "overlap.communication_bound"):
        finding = finding_of(detection, cause)
        assert finding.status == "undecided" and "120 reductions" in text_of(finding).summary
        assert "record_shapes=True" in text_of(finding).missing


def test_few_large_buckets_rule_it_out(tmp_path: Path, detect: Any) -> None:
    write(scenario("ddp").build(), tmp_path)
    finding = finding_of(detect(tmp_path), CAUSE)
    assert finding.status == "ruled_out" and text_of(finding).measured.startswith("0 of 4 reductions")


def test_without_a_trace_it_is_open(detect: Any) -> None:
    finding = finding_of(detect(), CAUSE)
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing
