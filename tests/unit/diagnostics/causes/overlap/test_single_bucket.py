from pathlib import Path
from typing import Any

import pytest

from diagnostics.analysis.step_profile.overview import Overview
from diagnostics.contract.findings import text_of
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import ddp
from tests.unit.diagnostics.causes.overlap.helpers import dtk_run


def test_a_fix_wins_what_was_promised(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(), buckets=1, transfer=6000.0), tmp_path / "one")
    write(ddp(Simulator(), buckets=4, transfer=6000.0), tmp_path / "four")
    item, four = detect(tmp_path / "one"), detect(tmp_path / "four")
    (finding,) = (f for f in item.findings if f.cause == "overlap.single_bucket")
    saved = item.measures["overlap"]["step_ms"] - four.measures["overlap"]["step_ms"]
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(saved, rel=0.1)


def test_below_two_percent_nothing_is_confirmed(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(), buckets=1, size=2 << 20, transfer=150.0), tmp_path)
    by_cause = {finding.cause: finding for finding in detect(tmp_path).findings}
    assert by_cause["overlap.single_bucket"].status == "ruled_out"
    assert "below 2%" in text_of(by_cause["overlap.single_bucket"]).measured


def test_one_reduction_of_unknown_size_advises_no_size_of_buckets(tmp_path: Path, detect: Any) -> None:
    """It may be DDP's first bucket: a small model has no other, whatever `bucket_cap_mb` is."""
    write(ddp(Simulator(), buckets=1, size=0, transfer=6000.0), tmp_path)
    by_cause = {item.cause: item for item in detect(tmp_path).findings}
    finding = by_cause["overlap.single_bucket"]
    assert finding.status == "undecided" and "record_shapes=True" in text_of(finding).missing


@pytest.mark.parametrize("strategy", ["ddp", "deepspeed_zero1"])
@pytest.mark.parametrize("on_device", [True, False])
def test_keys_of_dtk_are_not_named_where_a_library_reduces(
    strategy: str, on_device: bool, tmp_path: Path, detect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the library waits for each reduction, so that no size of them would win anything."""
    monkeypatch.setattr(Overview, "on_device", on_device)
    write(ddp(Simulator(), buckets=1, transfer=6000.0), tmp_path)
    by_cause = {item.cause: item for item in detect(tmp_path, run=dtk_run({"strategy": {"name": strategy}})).findings}
    finding = by_cause["overlap.single_bucket"]
    if strategy != "ddp" and not on_device:
        assert finding.status == "ruled_out" and "deepspeed waits for each reduction" in text_of(finding).measured
        return
    (remedy,) = text_of(finding).remedies
    assert remedy.kind == ("override" if strategy == "ddp" else "code")
    assert strategy == "ddp" or "reduce_bucket_size" in remedy.change
