"""Injected failures: what each of them is, and what is reported of a job in which one was tried."""

import dataclasses
from typing import get_args, get_type_hints

import pytest

from diagnostics.contract.findings import Group
from diagnostics.evidence.model import RankError
from dtk.config.schema import CustomModelConfig, RankFault
from dtk.preflight.calls import End, Record
from dtk.preflight.pool import Collected
from dtk.preflight.verdict import Waiting, judge
from dtk.preflight.what_if import INJECTED_FAILURES, RESUME, STEPS, Tried, WhatIf, _tried
from dtk.strategies.ddp import DDPConfig
from tests.unit.plan.closed_form_jobs import job
from tests.unit.preflight.programs import Step, blocking, record

WORLD = Group("0", (0, 1, 2), "default_pg")
STEP: Step = ("call", 0, "all_reduce", 8)


def records(*calls: int, end: End | None = None) -> dict[int, Record]:
    """How many calls each rank makes; `end` is that of rank 1."""
    return {
        rank: Record(rank, record(rank, [WORLD], blocking(*[STEP] * count)).program, (WORLD,), result)
        for rank, count in enumerate(calls)
        for result in [end if end is not None and rank == 1 else End()]
    }


@pytest.mark.parametrize("failure", INJECTED_FAILURES, ids=lambda failure: failure.fault)
def test_an_injected_failure_is_a_fault_of_one_rank_within_the_steps(failure: object) -> None:
    assert failure in INJECTED_FAILURES
    names = get_args(get_type_hints(RankFault)["name"])
    assert failure.fault in (*names, RESUME)  # type: ignore[attr-defined]
    assert 1 < failure.step <= STEPS  # type: ignore[attr-defined]


def test_others_that_wait_are_told_with_the_cause() -> None:
    tried = _tried(INJECTED_FAILURES[4], 1, judge(records(2, 1, 2, end=End("exited")), {}, "a test"))
    assert tried.hangs and tried.cause.startswith("hang.")
    assert tried.where == Waiting("all_reduce", "/job/train.py:12")
    assert tried.stands.startswith("ranks 0,2 in all_reduce")


def test_a_job_that_ends_or_only_fails_does_not_hang() -> None:
    assert _tried(INJECTED_FAILURES[0], 1, judge(records(2, 2, 2), {}, "a test")) == Tried(
        INJECTED_FAILURES[0], 1, hangs=False
    )
    raised = End("raised", error=RankError(None, "", 0, "ValueError", "bad", ()))
    failed = judge(records(2, 2, 2, end=raised), {}, "a test")
    assert failed.report is not None and not _tried(INJECTED_FAILURES[3], 1, failed).hangs


def test_a_branch_of_the_users_own_model_is_not_guessed() -> None:
    config = dataclasses.replace(job(3, DDPConfig()), model=CustomModelConfig(_target_="mine.Model", name="mine"))
    trial = WhatIf(
        config=config,
        judged=judge,
        records=records(2, 2, 2),
        collected=Collected(),
        local_size=8,
        limit_s=1.0,
        reads=True,
    )
    branch = next(failure for failure in INJECTED_FAILURES if failure.fault == "unused_parameters")
    result = trial.inject(branch)
    assert result.skipped and not result.hangs
