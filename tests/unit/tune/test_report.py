"""The document of a search: what to type first, then every candidate."""

from diagnostics.report.terminal import render
from dtk.tune.candidates import Candidate
from dtk.tune.model import TuneReport, row_of
from dtk.tune.report import document
from tests.unit.tune.probes import OOM, probe


def shown(**more: object) -> str:
    now, other = Candidate("strategy.bucket_cap_mb", "25", present=True), Candidate("strategy.bucket_cap_mb", "1")
    reference = {n: probe(100.0 + n) for n in range(3)}
    rows = (row_of(now, reference, None), row_of(other, {n: probe(150.0 + n) for n in range(3)}, reference))
    fields = {
        "topic": "bucket", "job": ("strategy=ddp",), "terms": ("train.steps=10",), "world_size": 2, "device": "cpu",
        "rows": rows, "reference": now, "take": other, "verdict": "use strategy.bucket_cap_mb=1",
    }  # fmt: skip
    return render(document(TuneReport(**{**fields, **more})), columns=None, colour=False)  # type: ignore[arg-type]


def test_the_verdict_and_the_command_come_first() -> None:
    text = shown()
    assert text.startswith("use strategy.bucket_cap_mb=1\n")
    assert "strategy=ddp; 2 ranks on cpu" in text
    assert "strategy=ddp strategy.bucket_cap_mb=1" in text.split("Candidates")[0]
    assert "25 (configured)" in text and "1 (recommended)" in text and "faster" in text and "over 25" in text


def test_nothing_is_to_be_typed_without_a_gain() -> None:
    text = shown(take=None, verdict="keep strategy.bucket_cap_mb=25")
    assert "command" not in text.split("Candidates")[0] and "(recommended)" not in text


def test_what_ran_out_of_memory_has_no_figures() -> None:
    died = row_of(Candidate("strategy.bucket_cap_mb", "100"), {1: OOM}, None)
    (line,) = (line for line in shown(rows=(died,)).splitlines() if line.strip().startswith("100"))
    assert "out of memory" in line and line.count("-") >= 4


def test_notes_and_the_folder_that_is_kept() -> None:
    text = shown(notes=("the time is up",), kept="/tmp/probes", rows=())
    assert "the time is up" in text and "/tmp/probes" in text and "Candidates" not in text
