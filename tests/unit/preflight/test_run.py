"""Jobs of dtk: faults are found with the cause that their file promises, and healthy jobs are let pass."""

import dataclasses
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from diagnostics.contract.findings import Group
from diagnostics.evidence.model import RankError
from dtk.config.schema import CustomModelConfig, RankFault
from dtk.errors import DtkError
from dtk.preflight import run
from dtk.preflight.calls import End, Record
from dtk.preflight.pool import Collected
from dtk.preflight.run import INJECTED_FAILURES, RESUME, STEPS, Tried, WhatIf, _tried
from dtk.preflight.verdict import Waiting, judge
from dtk.strategies.ddp import DDPConfig
from tests.faults.truth import ROOT, TRUTH, place
from tests.unit.plan.closed_form_jobs import job
from tests.unit.preflight.programs import Step, blocking, record
from tests.unit.preflight.simulations import simulate

TINY = ["model=gpt2_tiny", "model.layers=2", "model.width=32", "data.sequence_length=16", "launcher.device=cpu"]
EARLY = ["early_stop", "uneven_batches"]
FAULTS = ["rank0_state_dict", "accumulation_boundary", "unused_parameters"]
SWEEP = tuple(name for name, truth in TRUTH.items() if truth.ending != "finished")
HEALTHY: dict[str, tuple[int, list[str]]] = {
    "ddp accumulates and clips": (2, ["strategy=ddp", "train.global_batch_size=8", "train.micro_batch_size=2"]),
    "hsdp": (4, ["strategy=hsdp", "strategy.dp_shard=2"]),
    "tensor parallel": (4, ["strategy=fsdp", "parallel.tp=2"]),
    "3d": (4, ["strategy=zero1", "parallel.tp=2", "parallel.pp=2"]),
}
VARIANTS: dict[str, list[str]] = {
    "plain": ["train.clip_norm=null", "train.evaluate_every=-1", "checkpoint=off"],
    "all": ["train.micro_batch_size=2", "train.evaluate_every=1", "checkpoint.every=1"],
    "recomputes": ["train.activation_checkpoint_every=1", "record=off"],
}


def jobs(*variants: tuple[int | None, list[str]], **more: Any) -> list[dict[str, Any]]:
    return [{"overrides": overrides, "world_size": world_size, **more} for world_size, overrides in variants]


def check_fault(name: str, result: dict[str, Any]) -> None:
    truth = TRUTH[name]
    assert not result.get("error"), result
    (root,) = result["roots"]
    assert (root["cause"], tuple(root["ranks"])) == (truth.causes[0], truth.ranks), result
    if (seen := place(name)) is not None:
        file, line = seen
        assert [str(ROOT / file), line] in root["where"], result


@pytest.mark.parametrize(
    ("world_size", "typed", "note"),
    [(3, [], "with train.global_batch_size=3."), (2, [], ""), (3, ["train.global_batch_size=6"], "")],
)
def test_a_default_batch_that_was_replaced_is_named(
    world_size: int, typed: list[str], note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    def simulate_all(job: run.Job, *_: Any) -> None:
        notes.append(job.note)
        raise DtkError("as far as this test looks")

    monkeypatch.setattr(run, "simulate_all", simulate_all)
    monkeypatch.setattr(run, "warm_up", lambda *_: None)
    with pytest.raises(DtkError, match="as far as this test looks"):
        run.preflight(run.Request(overrides=(*TINY, *typed), world_size=world_size))
    assert len(notes) == 1 and notes[0].endswith(note) and bool(notes[0]) == bool(note)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("jobs")
    expected = {
        **{name: (None, [f"fault={name}", "launcher.device=cpu"]) for name in FAULTS},
        **{name: (size, [*TINY, *overrides]) for name, (size, overrides) in HEALTHY.items()},
        "classes": (512, [*TINY, "strategy=hsdp", "strategy.dp_shard=8", "strategy.dp_replicate=64"]),
    }
    expected["classes"][1].append("train.global_batch_size=512")
    requests = jobs(*expected.values())
    requests += jobs(*((2, [*TINY, "strategy=fsdp", f"fault={name}"]) for name in EARLY))
    requests += jobs(*((size, [*TINY, "strategy=fsdp"]) for size in (4, 2)), what_if=True)
    results = simulate(requests, folder)
    assert not list(folder.iterdir()), "a preflight left files"
    return dict(zip([*expected, *EARLY, "what_if", "what_if of 2"], results, strict=True))


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(results: dict[str, dict[str, Any]], name: str) -> None:
    check_fault(name, results[name])


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_jobs_pass(results: dict[str, dict[str, Any]], name: str) -> None:
    assert results[name].get("ends"), results[name]


def test_a_few_ranks_stand_for_many(results: dict[str, dict[str, Any]]) -> None:
    assert results["classes"].get("ends"), results["classes"]
    assert results["classes"]["simulated"] < 20


def test_what_if(results: dict[str, dict[str, Any]]) -> None:
    assert results["what_if"]["ends"], results["what_if"]
    tried = {fault: (hangs, cause) for fault, hangs, cause, *_ in results["what_if"]["tried"]}
    assert tried["uneven_batches"] == tried["early_stop"] == (True, "hang.uneven_iterations")
    assert tried["unused_parameters"] == (True, "hang.unused_parameters")
    assert tried["exception"] == (True, "hang.rank_raised")
    assert tried["nan_on_one_rank"] == (False, "")  # every rank sees the same sum
    assert tried["resume"] == (True, "hang.uneven_iterations")
    places = {fault: where for fault, _, _, where, _ in results["what_if"]["tried"]}
    waits = {fault: where.partition(" at ")[::2] for fault, where in places.items() if where}
    assert set(waits) == {"uneven_batches", "early_stop", "unused_parameters", "exception", "resume"}
    for fault, (call, at) in waits.items():
        assert call.startswith(("all_", "reduce_", "broadcast", "gather", "scatter", "barrier")), (fault, call)
        assert "/dtk/faults/" not in at and source_line(at).strip(), (fault, at)
    assert waits["exception"][0] in source_of_the_waiting(results["what_if"], "exception")


@pytest.mark.parametrize("fault", EARLY)
def test_one_of_two_ranks_that_ends_early_has_one_cause(results: dict[str, dict[str, Any]], fault: str) -> None:
    (root,) = results[fault]["roots"]
    assert (root["cause"], tuple(root["ranks"])) == ("hang.uneven_iterations", (1,)), results[fault]
    causes = {name: cause for name, _, cause, *_ in results["what_if of 2"]["tried"]}
    assert causes[fault] == root["cause"]


def test_what_if_has_the_same_causes_with_two_ranks(results: dict[str, dict[str, Any]]) -> None:
    two, four = ([item[:3] for item in results[name]["tried"]] for name in ("what_if of 2", "what_if"))
    assert two == four


def source_of_the_waiting(result: dict[str, Any], fault: str) -> str:
    """What the answer on the whole job says of that failure."""
    (stands,) = [stands for name, *_, stands in result["tried"] if name == fault]
    assert isinstance(stands, str)
    return stands


def source_line(place: str) -> str:
    file, _, line = place.rpartition(":")
    return Path(file).read_text(encoding="utf-8").splitlines()[int(line) - 1]


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_every_fault_of_the_truth_table(tmp_path: Path) -> None:
    requests = jobs(*((None, [f"fault={name}", "launcher.device=cpu"]) for name in SWEEP), limit_s=30.0)
    for name, result in zip(SWEEP, simulate(requests, tmp_path), strict=True):
        check_fault(name, result)


@pytest.mark.extended
def test_faults_that_hang_nobody_pass(tmp_path: Path) -> None:
    names = [name for name, truth in TRUTH.items() if truth.ending == "finished"]
    requests = jobs(*((None, [f"fault={name}", "launcher.device=cpu"]) for name in names))
    for name, result in zip(names, simulate(requests, tmp_path), strict=True):
        assert result.get("ends"), (name, result)


@pytest.mark.extended
@pytest.mark.timeout(600)
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_no_false_alarm(tmp_path: Path, world_size: int) -> None:
    strategies = {name: [f"strategy={name}"] for name in ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp")}
    strategies["hsdp"] += [f"strategy.dp_shard={world_size // 2}", "strategy.dp_replicate=2"]
    cases = [(name, variant) for name in strategies for variant in VARIANTS]
    batch = f"train.global_batch_size={8 * world_size}"
    requests = jobs(*((world_size, [*TINY, batch, *strategies[name], *VARIANTS[variant]]) for name, variant in cases))
    for case, result in zip(cases, simulate(requests, tmp_path), strict=True):
        assert result.get("ends"), (case, result)


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
