"""Why one variant is slower: exposed communication, waiting, compute; from the measures that the diagnosis leaves."""

from pathlib import Path

import msgspec

from diagnostics.report.measures import breakdown
from dtk.compare.compare import compare
from dtk.compare.figures import figures
from dtk.compare.model import RunRecord
from dtk.compare.notes import verdicts
from tests.unit.compare.folders import GATHERED, make_run, measures


def test_exposed_communication_waiting_and_causes_are_told(tmp_path: Path) -> None:
    change = {"strategy": {"name": "fsdp"}}
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", times_s=0.131, change=change, traffic=GATHERED)]
    comparison = compare(runs)
    spent = {"ddp": measures(60.0, 20.0, 8.0, 1.0), "fsdp": measures(90.0, 74.0, 45.0, 30.0)}

    def traced(run: RunRecord, label: str) -> RunRecord:
        causes = ("a cause: what was seen",) if label == "fsdp" else ()
        return msgspec.structs.replace(run, breakdown=breakdown(spent[label]), causes=causes)

    for variant in comparison.variants:
        variant.compared = [traced(run, variant.label) for run in variant.compared]
    (text,) = verdicts(comparison.variants, figures(comparison.variants, ratios=True))
    assert "61% of its communication is exposed, 45 ms per step (ddp: 8 ms), 30 ms of it waiting for late ranks" in text
    assert "30 ms more compute per step" in text
    assert "diagnosis: a cause: what was seen" in text


def test_the_same_collectives_are_said_to_be_the_same(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", times_s=0.2, change={"strategy.bucket_cap_mb": 1})]
    (verdict,) = compare(runs).verdicts
    assert verdict.startswith("ddp bucket_cap_mb=1 is 2.00x slower than ddp bucket_cap_mb=25.0")
    assert "the same collectives, according to their plans" in verdict
