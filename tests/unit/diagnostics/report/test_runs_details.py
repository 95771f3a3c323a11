"""How one run looks in a terminal: aligned figures, no control character, and the next command where a run ended."""

from typing import Any

import pytest

from diagnostics.contract.artifacts import Failure, Status
from diagnostics.report.runs import details
from diagnostics.report.terminal import render
from diagnostics.runs.find import Details, Run


def shown(**more: Any) -> str:
    run = more.pop("run", Run("first", "runs/first", "finished"))
    values: dict[str, Any] = {
        "status": None,
        "log": None,
        "summary": {},
        "last_metrics": {},
        "overrides": [],
        "recorded": {},
    }
    page = details(Details(run=run, **{**values, **more}))
    return render(page, columns=None, colour=False)


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
        "overrides train.steps=3",
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
    values = dict(line.split(maxsplit=1) for line in text.partition("Summary\n")[2].splitlines())
    assert values == {
        "loss": "1.23457", "tokens": "1,234,567", "rate": "98,765", "mfu": "n/a", "ok": "True",
        "time_s": "1970-01-01 00:00:00+00:00",
    }  # fmt: skip
    assert "1970" not in shown(summary={"time_s": 1e300}), "no calendar has such a moment"
