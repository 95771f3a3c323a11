from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.findings import text_of
from tests.trace_generator import Simulator, write
from tests.trace_scenarios import ddp


def test_a_fix_wins_what_was_promised(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(), buckets=1, transfer=6000.0), tmp_path / "one")
    write(ddp(Simulator(), buckets=4, transfer=6000.0), tmp_path / "four")
    one, four = detect(tmp_path / "one"), detect(tmp_path / "four")
    (finding,) = (f for f in one.findings if f.cause == "overlap.single_bucket")
    saved = one.measures["overlap"]["step_ms"] - four.measures["overlap"]["step_ms"]
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(saved, rel=0.1)


def test_below_two_percent_nothing_is_confirmed(tmp_path: Path, detect: Any) -> None:
    write(ddp(Simulator(), buckets=1, size=2 << 20, transfer=150.0), tmp_path)
    found = {one.cause: one for one in detect(tmp_path).findings}
    assert found["overlap.single_bucket"].status == "ruled_out"
    assert "below 2%" in text_of(found["overlap.single_bucket"]).measured
