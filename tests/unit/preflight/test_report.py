"""The answer of a preflight in one line, its document, and its JSON, from records that are judged for real."""

import json
from typing import Any

import pytest

from diagnostics.contract.findings import Group
from diagnostics.report import html, jsonform, terminal
from dtk.preflight.calls import End, Record
from dtk.preflight.report import PROVEN, answer, as_json, document
from dtk.preflight.run import INJECTED_FAILURES, Job, Preflight, Tried
from dtk.preflight.verdict import Waiting, judge
from tests.unit.preflight.programs import Step, blocking, record

WORLD = Group("0", (0, 1), "default_pg")
STEP: Step = ("call", 0, "all_reduce", 8)


def preflight_of(last: int = 2, steps: int = 2, note: str = "", tried: tuple[Tried, ...] = ()) -> Preflight:
    """Rank 0 makes two calls, rank 1 makes `last`."""
    records = {
        rank: Record(rank, record(rank, [WORLD], blocking(*[STEP] * calls)).program, (WORLD,), End())
        for rank, calls in ((0, 2), (1, last))
    }
    job = Job("preflight of a test, 2 ranks", 2, lambda exchange: records[exchange.rank], note=note)
    return Preflight(job, judge(records, {}, job.source), 2, steps, 1.25, tried)


def shown(preflight: Preflight, **values: Any) -> str:
    return terminal.render(document(preflight, **values), columns=None, colour=False)


def test_a_job_that_ends_says_what_that_is_based_on() -> None:
    assert answer(preflight_of()) == (
        "would finish: every rank completes (2 ranks, all simulated; 2 steps, 8 calls and waits; 1.2 s)"
    )
    assert "to its own end" in answer(preflight_of(steps=0))
    page = html.render(document(preflight_of(note="The model's widths are reduced.")))
    for text in (*(text.split(":")[0] for text in PROVEN.values()), "What was changed"):
        assert text in page
    assert "page" in shown(preflight_of(), page="/tmp/x.html") and "/tmp/x.html" in shown(
        preflight_of(), page="/tmp/x.html"
    )


def test_some_ranks_stand_for_the_others() -> None:
    preflight = preflight_of()
    few = Preflight(preflight.job, preflight.verdict, 1, 2, 1.0)
    assert "1 of them simulated, one of each class" in answer(few)


def test_a_job_that_would_hang_says_where() -> None:
    preflight = preflight_of(last=1)
    assert answer(preflight).startswith("would hang: rank 0 in all_reduce at train.py:12; rank 1 ended (")
    assert answer(preflight) in shown(preflight)
    assert "hang." in shown(preflight)


HERE = Waiting("all_reduce", "/job/look at this/train.py:12")
TRIED = (
    Tried(INJECTED_FAILURES[0], 1, hangs=True, cause="hang.uneven_iterations", where=HERE),
    Tried(INJECTED_FAILURES[1], 1, hangs=False, skipped="only you know which branch of your model"),
    Tried(INJECTED_FAILURES[3], 1, hangs=False),
)


@pytest.mark.parametrize("last", [1, 2])
def test_injected_failures_are_rows_whatever_the_job_does(last: int) -> None:
    text = shown(preflight_of(last, tried=TRIED))
    assert "What if rank 1 fails" in text
    for row in (
        "hang.uneven_iterations",
        "not tried: only you know which branch",
        "it raises an exception",
        "would finish",
    ):
        assert row in text
    assert "what happens on rank 1" in text and "all_reduce at /job/look at this/train.py:12" in text


def test_json_is_complete() -> None:
    output = json.loads(jsonform.text(as_json(preflight_of(last=1, tried=TRIED))))
    assert (output["schema"], output["ends"], output["hangs"], output["world_size"]) == (
        "dtk.preflight/1",
        False,
        True,
        2,
    )
    assert output["stands"].startswith("rank 0 in all_reduce") and output["report"]["root_causes"]
    assert [row["hangs"] for row in output["what_if"]] == [True, None, False]
    assert output["what_if"][0]["where"] == "all_reduce at /job/look at this/train.py:12"
    assert output["what_if"][2]["where"] == ""
    assert as_json(preflight_of())["report"] is None
