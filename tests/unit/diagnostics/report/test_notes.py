"""What a report notes beside the causes: each line once, and nothing that a root cause explains."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from diagnostics.contract.artifacts import Failure, Status
from diagnostics.contract.findings import SUSPECTED, EvidenceItem, Finding, Text
from diagnostics.diagnose import diagnose
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import EarlierAttempt, Evidence, LogFact, RankError, RunEvidence
from diagnostics.report.notes import notes

LINE = LogFact("gloo_timeout", 0, "rank0.log", 7, "Timed out waiting 1800000ms for recv operation to complete")
RAISED = RankError(1, "error.json", 0, "ValueError", "bad batch")
ROOT = Finding(
    cause="hang.network",
    status="confirmed",
    facts=Text("All agree."),
    evidence=(EvidenceItem("log", "x.log", "a line", 3),),
)


def noted(*roots: Finding, run: Any = None, covered: frozenset[str] = frozenset(), **values: Any) -> tuple[str, ...]:
    evidence = Evidence(root=Path("job"), limits=Limits(), **values)
    evidence.run = run
    return notes(evidence, "undecided", roots, roots, {}, covered)


def run(state: str, reason: str = "", rank: int | None = None) -> RunEvidence:
    failure = None if rank is None else Failure(rank=rank, reason=reason)
    status = Status(state=state, reason=reason, failure=failure)  # type: ignore[arg-type]
    return RunEvidence(Path("job"), status, {}, {}, {}, {}, {}, {})


def test_unexplained_lines_are_noted_the_first_of_each_kind() -> None:
    later = LogFact("gloo_timeout", 1, "rank1.log", 9, "Timed out as well")
    assert noted(facts=[LINE, later], errors=[RAISED]) == (
        "error.json: rank 1: ValueError bad batch",
        "rank0.log:7: Timed out waiting 1800000ms for recv operation to complete",
    )


def test_a_root_cause_and_the_rest_of_the_report_tell_of_them() -> None:
    assert noted(ROOT, facts=[LINE], errors=[RAISED]) == ()
    assert noted(facts=[LINE], covered=frozenset({"gloo_timeout"})) == ()


def test_the_account_of_the_steps_is_noted_where_the_headline_is_about_something_else() -> None:
    """A warning of NCCL beside a trace in good health: no verdict, and the figures all the same."""
    shares = {
        "world_size": 4,
        "traced": 4,
        "devices": 1,
        "on_device": True,
        "exposed": 0.02,
        "copies": 0.0,
        "idle": 0.01,
    }
    measures: dict[str, Any] = {"overlap": {"account": {**shares, "overlap": 0.9, "no_device_events": False}}}
    warned = Evidence(Path("job"), Limits(), facts=[LogFact("nccl_warn", 0, "job.log", 1, "NCCL WARN no sysfs")])
    figures = "Where the time goes: 90% of the communication overlaps, exposed communication 2% of the step, copies 0%"
    for evidence, findings, expected in (
        (warned, [], True),
        (Evidence(Path("job"), Limits()), [], False),
        (Evidence(Path("job"), Limits()), [replace(ROOT, confidence=SUSPECTED)], True),
    ):
        texts = notes(evidence, "undecided", (), findings, measures, frozenset())
        assert any(text.startswith(figures) for text in texts) == expected
    assert not any(text.startswith("Where") for text in notes(warned, "healthy", (), (), measures, frozenset()))


def test_what_the_launcher_recorded_is_not_repeated() -> None:
    text = "error.json: rank 1: ValueError bad batch"
    assert noted(run=run("failed", "exit code 1")) == ("The launcher recorded: exit code 1",)
    assert noted(run=run("failed", "ValueError: bad batch (train.py:12)", rank=1), errors=[RAISED]) == (text,)
    of_another = noted(run=run("failed", "killed by SIGKILL", rank=3), errors=[RAISED])
    assert of_another == (text, "The launcher recorded: killed by SIGKILL")
    evidence = Evidence(root=Path("job"), limits=Limits(), run=run("failed", "exit code 1"))
    assert notes(evidence, "undecided", (), (), {}, frozenset(), is_quoted=True) == ()
    assert noted(run=run("finished", "all steps done")) == noted(ROOT, run=run("failed", "exit code 1")) == ()


def test_exceptions_that_no_line_gives_to_a_rank() -> None:
    homeless = RankError(None, "x.log", 3, "KeyError", "'step'")
    assert noted(errors=[homeless]) == ("x.log:3 is an exception of an unidentified rank: KeyError: 'step'",)
    assert noted(ROOT, errors=[homeless]) == (), "the root cause cites that line"


def test_earlier_attempts_and_a_run_that_goes_on() -> None:
    before = EarlierAttempt(0, RAISED, (2, 3))
    first, second = noted(ROOT, run=run("running"), earlier=[before])
    assert first.startswith("Attempt 0 failed and the job was restarted: rank 1: ValueError: bad batch (error.json)")
    assert "ranks 2 and 3 left no error file" in first and second.startswith("The job is still running")
    assert noted(earlier=[EarlierAttempt(3, None)])[0].endswith("restarted: it left no error file")


def test_what_a_record_holds_as_figures_becomes_a_line_here() -> None:
    listed = LogFact("torchrun_list", None, "run.log", 4, fields={"ranks": [0, 2]})
    sides = [{"who": "most ranks", "count": 1640, "ranks": ()}, {"who": "1 rank", "count": 7, "ranks": [3]}]
    counts = LogFact(
        "ras_counts", None, "ras.txt", 9, fields={"op": "AllReduce", "communicator": "0xf", "sides": sides}
    )
    exited = RankError(3, "process.json", 0, "", "", exit_code=9)
    assert noted(facts=[listed, counts], errors=[exited]) == (
        "process.json: rank 3: exit code 9",
        "run.log:4: torchrun lists 2 ranks that failed or were stopped",
        "ras.txt:9: AllReduce of communicator 0xf: most ranks launched 1,640; 1 rank launched 7 (rank 3)",
    )


def test_a_training_that_had_ended_before_a_process_failed() -> None:
    ended = LogFact("training_ended", 0, "job.log", 5, "Training completed")
    errors = [RankError(rank, "job.log", line, "", "Fatal Python error: Aborted") for rank, line in ((0, 7), (1, 9))]
    text = "according to job.log:5, training had ended before any process failed"
    assert text in noted(facts=[ended], errors=errors) and text in noted(ROOT, facts=[ended], errors=errors)
    assert text not in noted(facts=[ended]) + noted(
        facts=[ended], errors=[errors[0], RankError(2, "job.log", 3, "", "")]
    )


def test_the_cpus_that_a_data_loader_found_are_noted_once(tmp_path: Path) -> None:
    warning = (
        "/x/torch/utils/data/dataloader.py:627: UserWarning: This DataLoader will create 32 worker processes in total. "
        "Our suggested max number of worker in current system is {cpus}, which is smaller than what this one is\n"
    )
    steps = "".join(f"step {n} loss {3 - n / 100:.2f}\n" for n in range(30))
    (tmp_path / "train.log").write_text(warning.format(cpus=8) * 2 + steps)
    report = diagnose(tmp_path)
    assert not report.root_causes and report.outcome == "undecided"
    (note,) = report.notes
    assert "train.log:1: the DataLoader warns that its process may use 8 CPUs only, which its 32 workers share" in note
