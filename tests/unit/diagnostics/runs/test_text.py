"""How runs look in a terminal: columns that fit, no control character, and the next command where a run ended."""

import json
import re
from typing import Any

import pytest

from diagnostics.contract.artifacts import Failure, Status
from diagnostics.runs.find import Details, Run
from diagnostics.runs.text import age, details, details_json, listing, listing_json

RUNS = [
    Run("first", "runs/first", "finished", step=120, loss=1.23456, tokens_per_s=123456.7, age_s=90.0),
    Run("second\x1b[31m", "runs/second", "hung"),
]


def shown(**more: Any) -> str:
    run = more.pop("run", RUNS[0])
    values: dict[str, Any] = {
        "status": None,
        "log": None,
        "summary": {},
        "last_metrics": {},
        "overrides": [],
        "recorded": {},
    }
    return details(Details(run=run, **{**values, **more}))


def test_a_listing_has_a_heading_and_a_line_for_each_run() -> None:
    heading, first, second = listing(RUNS, columns=None, colour=False).splitlines()
    assert heading.split() == ["run", "state", "steps", "loss", "tokens/s", "age"]
    assert first.split() == ["first", "finished", "120", "1.2346", "123,457", "2m"]
    assert second.split() == ["second\\x1b[31m", "hung", "-", "-", "-", "-"]
    assert len({line.index(word) for line, word in ((heading, "state"), (first, "finished"), (second, "hung"))}) == 1


@pytest.mark.parametrize(
    ("columns", "heading"),
    [
        (200, "run state steps loss tokens/s age"),
        (50, "run state steps loss age"),
        (38, "run state steps age"),
        (10, "run state age"),
    ],
)
def test_a_narrow_terminal_does_without_figures(columns: int, heading: str) -> None:
    lines = listing(RUNS, columns=columns, colour=False).splitlines()
    assert lines[0].split() == heading.split()
    assert columns < 30 or all(len(line) <= columns for line in lines)


def test_only_the_state_is_coloured_and_never_the_heading() -> None:
    plain, coloured = (listing(RUNS, columns=None, colour=colour) for colour in (False, True))
    assert re.sub(r"\x1b\[\d+m", "", coloured).split() == plain.split()
    assert coloured.splitlines()[0] == plain.splitlines()[0]
    assert "\x1b[32mfinished" in coloured and "\x1b[31mhung" in coloured


def test_a_long_name_shifts_its_own_row_only() -> None:
    long = Run("x" * 100, "runs/x", "finished", age_s=5.0)
    heading, first, other = listing([long, RUNS[0]], columns=None, colour=False).splitlines()
    assert heading.index("state") == other.index("finished") == 74 < first.index("finished")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59, "59s"), (60, "1m"), (3600, "1h"), (86400 * 2.4, "2d")])
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_json_forms_can_be_read_back() -> None:
    assert [one["id"] for one in json.loads(listing_json(RUNS))] == ["first", "second\x1b[31m"]
    assert json.loads(listing_json([])) == []
    values: dict[str, Any] = {"status": None, "log": None, "summary": {}, "last_metrics": {}, "recorded": {}}
    secret = Details(run=RUNS[0], overrides=["tracker.api_key=0123456789abcdef"], **values)
    assert json.loads(details_json(secret))["overrides"] == ["tracker.api_key=***"]


def test_the_failure_and_the_next_command_are_shown() -> None:
    failure = Failure(rank=1, reason="ValueError: bad\nbatch", step=3, region="backward", victims=[0, 2])
    status = Status(state="failed", attempt=2, exit_code=1, reason="rank 1 failed", failure=failure)
    run = Run("a b", "runs/a b", "failed", problems=["no metrics.jsonl"], age_s=7200.0)
    text = shown(run=run, status=status, log="runs/a b/logs", overrides=["train.steps=3"])
    for line in (
        "state     failed (attempt 2, exit code 1)",
        "reason    rank 1 failed",
        "problem   no metrics.jsonl",
        "age       2h",
        "typed     train.steps=3",
        "failure   rank 1 at step 3 in backward: ValueError: bad\\nbatch",
        "victims   ranks 0 and 2",
        "log       runs/a b/logs",
    ):
        assert line in text.splitlines()
    (again,) = [line for line in text.splitlines() if line.startswith("next ")]
    assert "resume=" in again and "a b" in again and again.endswith("(from its last checkpoint, or from the start)")


@pytest.mark.parametrize("state", ["finished", "running", "queued", "damaged", "newer"])
def test_what_cannot_be_resumed_is_not_advised_to_be(state: str) -> None:
    assert "next " not in shown(run=Run("a", "runs/a", state))


def test_figures_are_aligned_and_written_as_what_they_are() -> None:
    text = shown(
        summary={"loss": 1.23456789, "tokens": 1234567, "rate": 98765.4, "mfu": None, "ok": True, "time_s": 0.0}
    )
    values = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  "))
    assert values == {
        "loss": "1.23457", "tokens": "1,234,567", "rate": "98,765", "mfu": "n/a", "ok": "True",
        "time_s": "1970-01-01 00:00:00+00:00",
    }  # fmt: skip
    assert "1970" not in shown(summary={"time_s": 1e300}), "no calendar has such a moment"
