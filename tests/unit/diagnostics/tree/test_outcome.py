"""What happened to the run: by its root cause, by signs of how it ended, and without a cause."""

import time
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import Status
from diagnostics.contract.findings import Finding, Text
from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact, Problem, RankError, RunEvidence
from diagnostics.evidence.readers import watch
from diagnostics.tree.arbitrate import arbitrate
from diagnostics.tree.load import built_in
from diagnostics.tree.outcome import account_of, in_trouble, is_unheard, outcome
from tests.trace_generator import Simulator, write

TIMED_OUT = RankError(0, "log", 1, "RuntimeError", "Timed out waiting 20000ms for recv operation to complete")


def finding_of(cause: str, status: Any = "confirmed", confidence: float = 0.9) -> Finding:
    return Finding(cause=cause, status=status, facts=Text(""), confidence=confidence)


def fact(kind: str, **fields: Any) -> LogFact:
    return LogFact(kind, 0, "log", 1, "a line", fields)


def evidence(state: str = "", **values: Any) -> Evidence:
    result = Evidence(root=Path("job"), limits=Limits(), **values)
    if state:
        status = Status(state=state)  # type: ignore[arg-type]
        result.run = RunEvidence(Path("job"), status, {}, {}, {}, {}, {}, {})
    return result


def of(*findings: Finding, evidence: Evidence, **measures: Any) -> str:
    return outcome(evidence, arbitrate(built_in(), findings), findings, measures, lambda: None)


@pytest.mark.parametrize(
    ("cause", "values", "measures", "expected"),
    [
        ("hang.rank_exited", {}, {}, "hung"),
        ("hang.rank_exited", {"state": "failed"}, {}, "crashed"),
        ("hang.rank_exited", {"facts": [fact("srun_task")]}, {}, "crashed"),
        ("hang.rank_exited", {"facts": [fact("srun_task"), fact("gloo_timeout")]}, {}, "hung"),
        ("hang.rank_exited", {"facts": [fact("srun_task")]}, {"hang": {"ranks_waiting": 2}}, "hung"),
        ("hang.rendezvous", {"facts": [fact("port_in_use")]}, {}, "crashed"),
        ("hang.rendezvous", {"facts": [fact("ddp_unused")]}, {}, "hung"),
        ("hang.unused_parameters", {"facts": [fact("ddp_unused")]}, {}, "crashed"),
        ("hang.unused_parameters", {"facts": [fact("ddp_unused_indices")]}, {}, "crashed"),
        ("hang.collective_mismatch", {}, {"hang": {"ranks_waiting": 0}}, "diverged"),
        ("hang.collective_mismatch", {}, {"hang": {"ranks_waiting": 2}}, "hung"),
        ("hang.collective_mismatch", {"facts": [fact("gloo_timeout")]}, {"hang": {"ranks_waiting": 0}}, "hung"),
        ("hang.conditional_collective", {"state": "finished"}, {}, "diverged"),
        ("hang.straggler", {}, {}, "slow"),
        ("hang.straggler", {"errors": [TIMED_OUT]}, {}, "slow"),
        ("hang.straggler", {"errors": [TIMED_OUT], "facts": [fact("torchrun_list")]}, {}, "crashed"),
        ("overlap.skew", {"errors": [TIMED_OUT], "facts": [fact("torchrun_list"), fact("gloo_timeout")]}, {}, "hung"),
        ("overlap.skew", {"facts": [fact("torchrun_list")]}, {}, "slow"),
        ("memory.leak", {}, {}, "at_risk"),
        ("memory.leak", {"state": "oom"}, {}, "oom"),
        ("memory.leak", {"facts": [fact("cuda_oom")]}, {}, "oom"),
        ("env.contradiction", {"facts": [fact("cuda_oom")]}, {}, "at_risk"),
    ],
)
def test_the_root_cause_and_what_else_is_known(cause: str, values: Any, measures: Any, expected: str) -> None:
    assert of(finding_of(cause), evidence=evidence(**values), **measures) == expected


RULED_OUT = finding_of("hang.network", "ruled_out")


@pytest.mark.parametrize(
    ("findings", "values", "expected"),
    [
        ([RULED_OUT], {}, "undecided"),
        ([finding_of("env.contradiction", "ruled_out")], {}, "undecided"),
        ([RULED_OUT, finding_of("hang.straggler", confidence=0.3)], {}, "undecided"),
        ([RULED_OUT, finding_of("hang.rank_oom", confidence=0.3)], {}, "oom"),
        ([RULED_OUT], {"errors": [RankError(1, "error.json", 0, "ValueError", "bad")]}, "undecided"),
        ([RULED_OUT], {"problems": [Problem("cause", "hang.network", "it failed")]}, "undecided"),
        ([], {"state": "finished"}, "healthy"),
        ([], {"state": "failed"}, "undecided"),
        ([], {"state": "finished", "facts": [fact("nccl_warn")]}, "undecided"),
        ([], {"state": "finished", "facts": [fact("gloo_closed")]}, "undecided"),
        ([], {"state": "finished", "facts": [fact("watchdog_timeout")]}, "undecided"),
        ([], {"state": "finished", "facts": [fact("non_finite_eval")]}, "undecided"),
    ],
)
def test_without_a_root_cause(findings: list[Finding], values: Any, expected: str) -> None:
    assert of(*findings, evidence=evidence(**values)) == expected


def test_a_job_is_not_healthy_where_its_time_is_not_accounted_for() -> None:
    shares = {"overlap": 0.9, "exposed": 0.02, "copies": 0.0, "idle": 0.02, "traced": 2, "world_size": 2}
    shares |= {"on_device": True, "no_device_events": False}
    assert of(RULED_OUT, evidence=evidence(), overlap={"account": shares}) == "healthy"
    assert of(RULED_OUT, evidence=evidence(), overlap={"account": {**shares, "idle": 0.5}}) == "undecided"
    assert account_of({}) is None and account_of({"overlap": {}}) is None


def test_a_run_elsewhere_that_is_silent_may_have_ended() -> None:
    running = evidence("running")
    assert running.run is not None and not is_unheard(running), "its processes are seen on this machine"
    running.run.seen = False
    assert is_unheard(running)
    beat = type("Beat", (), {"time_s": time.time()})
    running.run.heartbeats = {0: beat}  # type: ignore[dict-item]
    assert not is_unheard(running) and of(evidence=running) == "healthy"
    beat.time_s -= 3600
    assert is_unheard(running) and of(evidence=running) == "undecided"
    running.run.seen = True
    assert is_unheard(running) and of(evidence=running) == "undecided", "its processes exist, and may all wait"


def test_trouble_is_what_a_healthy_job_does_not_leave() -> None:
    assert not in_trouble(evidence(facts=[fact("nccl_env"), fact("start", state="met")]))
    assert in_trouble(evidence(facts=[fact("start", state="meets")])) and in_trouble(evidence(facts=[fact("xid")]))
    assert in_trouble(evidence(facts=[fact(watch.VERDICT)])), "dtk watch ended it, whatever its records show"


@pytest.mark.parametrize("status", ["{", "[]", '{"schema_version": 1, "state": "failed", "reason": null}', None])
def test_a_run_whose_end_cannot_be_read_is_not_healthy(tmp_path: Path, status: str | None) -> None:
    manifest = '{"schema_version": 1, "run_id": "x", "argv": [], "config_sha256": ""}'
    texts = {"status.json": status, "manifest.json": manifest, "config.yaml": "[", "overrides.yaml": "[]"}
    for name, text in texts.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    report = diagnose(tmp_path)
    assert report.outcome == "undecided" and "how the run ended is not known" in report.statement


NO_INTERFACE = (
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, internal error, NCCL version 2.14.3\n"
)


@pytest.mark.parametrize(
    ("then", "expected"),
    [("", "crashed"), ("[rank1]: Timed out waiting 1800000ms for recv operation to complete\n", "hung")],
)
def test_what_raised_at_once_did_not_hang(tmp_path: Path, then: str, expected: str) -> None:
    last = "[rank0]: Last error:\n[rank0]: Bootstrap : no socket interface found\n"
    (tmp_path / "train.log").write_text(NO_INTERFACE + last + then)
    report = diagnose(tmp_path)
    assert (report.root_causes[0].cause, report.outcome) == ("env.wrong_interface", expected)


LOSSES = "".join(f"step {step} loss 2\n" for step in range(1, 4))
CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        (LOSSES, "healthy"),
        (LOSSES + "retry on ChildFailedError: 3 times\n", "healthy"),
        (LOSSES + CHILD_FAILED, "undecided"),
        (f"{LOSSES}{CHILD_FAILED}{60 * '='}\ntrain.py FAILED\n{60 * '-'}\nFailures:\n", "undecided"),
    ],
)
def test_a_log_that_is_cut_before_torchruns_list_shows_no_good_health(tmp_path: Path, log: str, outcome: str) -> None:
    sim = Simulator(ranks=1)
    for _ in range(100):
        sim.kernel(100.0)
    (tmp_path / "job.log").write_text(log)
    alone = diagnose(tmp_path)
    assert (alone.outcome, "no known problem" in alone.statement) == ("undecided", outcome == "healthy")
    assert any("ChildFailedError" in note for note in alone.notes) == (outcome != "healthy")
    write(sim, tmp_path)
    assert diagnose(tmp_path).outcome == outcome
