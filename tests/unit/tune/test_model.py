"""Rows of a search: gains in pairs, what noise allows to say, and the JSON."""

import json

import pytest

from diagnostics.report.terminal import render
from dtk.compare.statistics import Estimate
from dtk.tune.candidates import Candidate
from dtk.tune.model import NO_GAIN, Row, TuneReport, as_json, clearly_fastest, document, row_of
from tests.unit.tune.probes import OOM, probe

A, B = Candidate("train.micro_batch_size", "1", present=True), Candidate("train.micro_batch_size", "2")


def row(gain: Estimate | None, candidate: Candidate = B, ended: str = "finished") -> Row:
    return Row(candidate, ended, False, None, None, gain, ())


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (None, ""),
        (Estimate(1.5, None, None, 2), "too few repeats for an interval"),
        (Estimate(1.1, 0.9, 1.3, 5), NO_GAIN),
        (Estimate(0.9, 0.8, 1.1, 5), "no loss distinguishable from noise"),
        (Estimate(1.1, 1.05, 1.2, 5), "faster"),
        (Estimate(0.9, 0.85, 0.95, 5), "slower"),
    ],
)
def test_a_gain_says_no_more_than_noise_allows(gain: Estimate | None, verdict: str) -> None:
    assert row(gain).verdict == verdict


def test_gains_are_over_the_repeats_that_both_have() -> None:
    ours = {1: probe(200.0), 2: probe(400.0), 3: probe(900.0)}
    theirs = {1: probe(100.0), 2: probe(200.0), 3: OOM}
    row = row_of(B, ours, theirs)
    assert row.gain is not None and (row.gain.median, row.gain.count) == (2.0, 2)
    assert row.tokens_per_s is not None and row.tokens_per_s.median == 400.0
    assert row.finished and len(row.runs) == 3
    assert row_of(A, theirs, None).gain is None


def test_the_first_probe_that_did_not_finish_is_how_it_ended() -> None:
    row = row_of(B, {1: probe(100.0), 2: OOM, 3: probe(state="failed", reason="ValueError")}, {1: OOM})
    assert (row.ended, row.out_of_memory, row.finished) == ("out of memory", True, False)
    assert row.gain is None and row.peak_memory_bytes is not None
    assert row_of(B, {}, None).tokens_per_s is None


def test_the_fastest_beyond_noise() -> None:
    slow, fast = row(Estimate(1.1, 1.05, 1.2, 5)), row(Estimate(1.3, 1.2, 1.4, 5), A)
    unsure, died = row(Estimate(9.0, 0.5, 20.0, 5)), row(Estimate(2.0, 1.9, 2.1, 5), ended="out of memory")
    assert clearly_fastest([slow, fast, unsure, died]) is fast
    assert clearly_fastest([unsure, died]) is None


def test_json_names_what_to_type() -> None:
    rows = (row_of(A, {1: probe(100.0)}, None), row_of(B, {1: probe(150.0)}, {1: probe(100.0)}))
    report = TuneReport(
        topic="micro_batch_size", job=("strategy=ddp",), terms=(), world_size=2, device="cpu", rows=rows,
        reference=A, take=B, verdict="take it",
    )  # fmt: skip
    data = json.loads(json.dumps(as_json(report)))
    assert (data["take"], data["reference"]) == ("train.micro_batch_size=2", "train.micro_batch_size=1")
    assert [candidate["override"] for candidate in data["candidates"]] == [
        "train.micro_batch_size=1",
        "train.micro_batch_size=2",
    ]
    assert (
        data["candidates"][0]["present"] is True
        and data["candidates"][1]["verdict"] == "too few repeats for an interval"
    )
    assert data["failure"] is None and "rows" not in data and report.measured


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
