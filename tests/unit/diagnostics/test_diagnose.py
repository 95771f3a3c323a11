"""The pipeline around the detectors: outcome, coverage, and detectors of other people that misbehave."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagnostics.contract.artifacts import Status
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.findings import Detection, Finding, Text
from diagnostics.diagnose import Options, conclude, diagnose, run_detector
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact, Problem, RankError, RunEvidence, Stacks
from diagnostics.evidence.readers.watch import ENDED_WELL
from diagnostics.report.notes import coverage
from diagnostics.report.overview import headline
from diagnostics.tree.load import built_in
from tests.unit.diagnostics.report.samples import report

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "diagnose.md").read_text()


def evidence(**values: Any) -> Evidence:
    return Evidence(root=Path("job"), limits=Limits(), **values)


def example(name: str) -> str:
    match = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", GUIDE, re.DOTALL)
    assert match
    return match[1]


class ScriptedDetector:
    """A detector that does what it is told."""

    name = "odd"
    causes = ("odd.one", "odd.two")

    def __init__(self, result: Any) -> None:
        self.result = result

    def detect(self, evidence: Evidence) -> Any:
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.mark.parametrize("result", [ValueError("two\nlines"), RecursionError(), None, Detection(["no finding"]), 7])
def test_a_detector_that_fails_costs_its_own_causes_only(result: Any) -> None:
    seen = evidence()
    detection = run_detector(ScriptedDetector(result), seen)
    assert [(finding.cause, finding.status) for finding in detection.findings] == [
        ("odd.one", "undecided"),
        ("odd.two", "undecided"),
    ]
    assert len(seen.problems) == 1 and seen.problems[0].kind == "detector" and "\n" not in seen.problems[0].what


def test_a_cause_that_a_detector_forgets_is_undecided() -> None:
    seen = evidence()
    finding = Finding(cause="odd.one", status="ruled_out", facts=Text(""))
    detection = run_detector(ScriptedDetector(Detection([finding])), seen)
    assert [item.status for item in detection.findings] == ["ruled_out", "undecided"] and not seen.problems


@pytest.mark.parametrize("part", ["symptoms", "suspicions", "headline"])
def test_suspicions_that_fail_cost_no_report(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def fails(*arguments: object) -> None:
        raise KeyError("odd")

    text = "Watchdog caught collective operation timeout"
    fields = {"seq": 3, "op": "ALLREDUCE", "numel_in": 8, "timeout_ms": 1000, "ran_ms": 1100}
    seen = evidence(facts=[LogFact("watchdog_timeout", 0, "log", 1, text, fields)])
    assert conclude(seen, built_in(), [], {}, "job").suspicions and not seen.problems
    monkeypatch.setattr(f"diagnostics.diagnose.{part}", fails)
    report = conclude(seen, built_in(), [], {}, "job")
    assert (report.outcome, report.waiting, report.suspicions) == ("undecided", None, ())
    assert [(problem.kind, problem.file) for problem in seen.problems] == [("cause", "suspicions")]
    assert "KeyError: 'odd'" in seen.problems[0].what
    assert any("suspicions" in problem for row in report.coverage for problem in row.problems)


def outcome(*findings: Finding, **values: Any) -> str:
    return conclude(evidence(**values), built_in(), findings, {}, "job").outcome


def test_outcomes() -> None:
    ruled_out = Finding(cause="hang.network", status="ruled_out", facts=Text(""))
    unsure = Finding(cause="hang.straggler", status="confirmed", facts=Text(""), confidence=0.3)
    error = RankError(1, "error.json", 0, "ValueError", "bad")
    fact = LogFact("cuda_oom", 0, "log", 1, "CUDA out of memory")
    setting = LogFact("nccl_env", 0, "log", 1, "NCCL_DEBUG set by environment to INFO")
    assert outcome() == "undecided"
    assert outcome(ruled_out) == "undecided"  # Neither the time of a step nor the end is known.
    assert outcome(ruled_out, facts=[setting]) == "undecided"  # A log alone does not show how the job ended.
    assert outcome(ruled_out, errors=[error]) == "undecided"
    assert outcome(ruled_out, facts=[fact]) == "undecided"
    listed = LogFact("torchrun_list", None, "torchrun.log", 9, "torchrun lists 1 rank", {"ranks": [0], "pids": [4]})
    well = LogFact(ENDED_WELL, None, "watch.json", 0, "the command ended with exit code 0")
    assert outcome(ruled_out, facts=[listed]) == "undecided"
    assert outcome(ruled_out, facts=[well]) == "healthy" and outcome(ruled_out, facts=[well, listed]) == "undecided"
    assert outcome(ruled_out, unsure) == "undecided"
    open_hang = Finding(cause="hang.p2p_cycle", status="undecided", facts=Text(""))
    assert outcome(ruled_out, open_hang, facts=[well]) == "healthy"
    assert outcome(ruled_out, open_hang, stacks=[Stacks(0, "0.txt", ())]) == "undecided"
    leak = Finding(cause="memory.leak", status="confirmed", facts=Text(""))
    assert outcome(leak) == "at_risk" and outcome(leak, facts=[fact]) == "oom"
    assert outcome(Finding(cause="hang.straggler", status="confirmed", facts=Text(""))) == "slow"


def test_the_order_of_findings_does_not_matter() -> None:
    findings = [decided.finding for decided in report().findings]
    first, other = (conclude(evidence(), built_in(), order, {}, "job") for order in (findings, findings[::-1]))
    assert first == other


def test_absent_ranks_are_told() -> None:
    stacks = [Stacks(rank, f"{rank}.txt", ()) for rank in (0, 2, 7)]
    lines = coverage(evidence(stacks=stacks, problems=[Problem("flight", "x", "it is empty")]), 8)
    assert [(line.kind, line.ranks_present, line.ranks_expected) for line in lines] == [
        ("flight", 0, 0),
        ("stacks", 3, 8),
    ]
    assert lines[0].problems == ("x: it is empty",) and lines[1].problems == ("ranks 1, 3-6: no stacks",)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The detector of the guide, installed by its entry point; and one that cannot be imported."""
    (tmp_path / "site_detector.py").write_text(example("detector"))
    line = re.search(r'^(\w+) = "(.+)"$', example("entry point"), re.MULTILINE)
    assert line
    entries = (f"{line[1]} = {line[2]}", "broken = no_such_module:x", "other = json:dumps")
    package = tmp_path / "site_detector-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: site_detector\nVersion: 1\n")
    (package / "entry_points.txt").write_text("\n".join(["[dtk.detectors]", *entries, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "site_detector", raising=False)
    importlib.invalidate_caches()
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "gpu1:77:90 [3] x.cc:1 NCCL WARN Call to bind failed : Cannot assign requested address",
        "[rank3]:[E909 09 ProcessGroupNCCL.cpp:1] [PG 0 (default_pg) Rank 3] Timeout at NCCL work: 7, last enqueued "
        "NCCL work: 9, last completed NCCL work: 6.",
        "gpu1:77:90 [3] net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with status=5",
    ],
)
def test_a_line_of_trouble_is_no_good_health(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.log").write_text(f"step 1 loss 2.0\n{line}\nstep 2 loss 1.9\n")
    assert diagnose(tmp_path).outcome == "undecided"


LOG = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 12, in <module>
[rank1]:     main()
[rank1]: TimeoutError: waited 300 s for backup.lock
"""


def test_the_example_of_the_guide(own: Path) -> None:
    (own / "job").mkdir()
    (own / "job" / "rank_1.log").write_text(LOG)
    (own / "tree.yaml").write_text(example("tree"))
    report = diagnose(own / "job", Options(trees=(own / "tree.yaml",)))
    mine = next(finding.finding for finding in report.findings if finding.finding.cause == "site.backup_running")
    assert mine.status == "confirmed" and mine.ranks == (1,)
    branch = report.tree.children[-1]
    assert (branch.id, branch.gate) == ("slow_nights", "and")
    assert branch.children[1].status == "confirmed" and branch.status != "confirmed"
    assert report.title("site.backup_running") == "the nightly backup was running"
    problems = {text.split(" ")[0] for row in report.coverage if row.kind == "detector" for text in row.problems}
    assert {"broken", "other"} <= problems


def test_without_a_tree_an_own_cause_has_a_branch_of_its_own(own: Path) -> None:
    (own / "job").mkdir()
    (own / "job" / "rank_1.log").write_text(LOG)
    report = diagnose(own / "job")
    assert report.tree.children[-1].id == "own"
    assert [child.id for child in report.tree.children[-1].children] == ["site.backup_running"]


def test_the_list_of_causes_is_that_of_the_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    causes = importlib.import_module("causes")
    assert (ROOT / "docs" / "causes.md").read_text() == causes.render()
    schema = (ROOT / "docs" / "report.schema.json").read_text()
    assert schema == causes.schema(schema) and "hang.rank_oom" in schema


EMPTY_TRACE = '{"schemaVersion": 1, "traceEvents": []}'


def test_evidence_of_which_nothing_can_be_read_is_no_good_health(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(EMPTY_TRACE)
    with pytest.raises(DiagnosticsError, match=r"rank0\.json: it holds no events"):
        diagnose(tmp_path)


def test_damage_leaves_the_outcome_open_unless_a_cause_is_confirmed() -> None:
    ruled_out = Finding(cause="hang.network", status="ruled_out", facts=Text(""))
    confirmed = Finding(cause="hang.rank_raised", status="confirmed", facts=Text(""))
    hurt = [Problem("trace", "rank0.json", "it ends in the middle")]
    assert outcome(ruled_out, problems=hurt) == "undecided"
    assert outcome(confirmed, problems=hurt) == "crashed"
    well = LogFact(ENDED_WELL, None, "watch.json", 0, "the command ended with exit code 0")
    harmless = [Problem("trace", "x", "a second trace", harmless=True)]
    assert outcome(ruled_out, problems=harmless, facts=[well]) == "healthy"
    assert outcome(Finding(cause="env.contradiction", status="ruled_out", facts=Text(""))) == "undecided"


def test_an_error_of_an_unknown_rank_is_shown() -> None:
    report = conclude(evidence(errors=[RankError(None, "a.log", 7, "ValueError", "bad")]), built_in(), [], {}, "job")
    assert any("a.log:7" in note and "ValueError: bad" in note for note in report.notes)


def test_what_speaks_against_good_health_is_shown() -> None:
    fact = LogFact("dist_backend_error", 0, "a.log", 3, "NCCL error in: a.cpp:1, " + "x" * 300)
    report = conclude(evidence(facts=[fact]), built_in(), [], {}, "job")
    (note,) = report.notes
    assert report.outcome == "undecided"
    assert note.startswith("a.log:3: NCCL error in") and note.endswith("xxx...") and len(note) < 220


def test_an_own_tree_with_the_id_of_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank_1.log").write_text(LOG)
    own = "id: hang\ntitle: x\ngate: or\noutcome: slow\nchildren: [{cause: overlap.skew, title: y}]\n"
    (tmp_path / "own.yaml").write_text(own)
    with pytest.raises(DiagnosticsError, match=r"own\.yaml: the id 'hang' is taken by a built-in tree"):
        diagnose(tmp_path, Options(trees=(tmp_path / "own.yaml",)))


def test_logs_without_a_word_of_trouble_show_neither_trouble_nor_good_health(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank_{rank}.log").write_text("step 1 loss 2.0\n")
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    assert headline(report).startswith("no known problem is reported in 3 logs")


def test_a_log_with_known_lines_and_no_trouble_does_not_show_how_the_job_ended(tmp_path: Path) -> None:
    line = "W1 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 90 closing signal SIGTERM\n"
    (tmp_path / "job.log").write_text("NCCL version 2.21.5+cuda12.4\n" + line)
    assert diagnose(tmp_path).outcome == "undecided"


OOM = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.55 GiB (GPU {}; 23.69 GiB total capacity; "
    "12.58 GiB already allocated; 10.38 GiB free; 12.58 GiB reserved in total by PyTorch)\n"
)
WAITED = (
    "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, "
    "NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("after", "memory"),
    [
        ("[launch.py:324:sigkill_handler] ['python', 'a.py', '--local_rank=1'] exits with return code = 1\n", True),
        ("n7:1:2 [0] socket.c:540 NCCL WARN Net : Connection closed by remote peer n8<41920>\n", True),
        (WAITED, False),
    ],
)
def test_where_memory_ran_out_exit_codes_and_lost_connections_follow_from_it(
    tmp_path: Path, after: str, memory: bool
) -> None:
    (tmp_path / "job.log").write_text(f"{OOM.format(1)}step 1\n{OOM.format(0)}{after}")
    report = diagnose(tmp_path)
    assert report.outcome == "oom" or not memory
    assert (headline(report) == "a device ran out of memory; the cause is not certain") == memory
    assert (report.waiting is not None) != memory


def verdict_of(evidence_: Evidence, cause: str) -> tuple[str, str]:
    finding = Finding(cause=cause, status="confirmed", facts=Text("x"), confidence=0.9, ranks=(1,))
    report = conclude(evidence_, built_in(), [finding], {}, "job")
    return report.outcome, headline(report)


def test_a_refusal_of_ddp_is_a_crash_and_a_wait_for_gradients_a_hang() -> None:
    words = "Expected to have finished reduction in the prior iteration before starting a new one."
    cause = "hang.unused_parameters"
    assert verdict_of(evidence(errors=[RankError(1, "x", 1, "RuntimeError", words)]), cause)[0] == "crashed"
    assert verdict_of(evidence(facts=[LogFact("ddp_unused", 1, "x", 1, words)]), cause)[0] == "crashed"
    assert verdict_of(evidence(), cause)[0] == "hung"
    other = evidence(errors=[RankError(1, "x", 1, "RuntimeError", words)])
    assert verdict_of(other, "hang.collective_mismatch")[0] == "hung"


def test_a_mismatch_in_a_run_that_ended_in_order_hangs_nothing() -> None:
    def run(state: Any) -> Evidence:
        return evidence(run=RunEvidence(Path("job"), Status(state), {}, {}, {}, {}, {}, {}))

    assert verdict_of(run("finished"), "hang.collective_mismatch") == (
        "diverged",
        "ranks issued different collective calls at the same position, unnoticed: the run ended",
    )
    assert verdict_of(run("hung"), "hang.collective_mismatch")[0] == "hung"


def test_a_run_that_finished_shows_its_figures_and_rules_out_what_ends_a_run(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"state": "finished", "attempt": 0, "schema_version": 1, "step": 40}')
    (tmp_path / "manifest.json").write_text('{"run_id": "r", "schema_version": 1}')
    figures = {"step": 40, "loss": 2.5, "step_time_s": 0.25, "tokens_per_s": 4096.4, "peak_memory_bytes": 3 << 30}
    (tmp_path / "summary.json").write_text(json.dumps({"schema_version": 1, "figures": figures}))
    report = diagnose(tmp_path)
    assert report.outcome == "healthy"
    assert report.statement.startswith("40 steps, loss 2.5, 250 ms per step, 4,096 tokens/s, peak 3 GiB on rank 0;")
    status = {decided.finding.cause: decided.finding.status for decided in report.findings}
    assert {status[cause] for cause in ("memory.host", "hardware.gpu_fault", "checkpoint.mismatch")} == {"ruled_out"}
    assert status["memory.activations"] == "undecided"
    (tmp_path / "summary.json").write_text(json.dumps({"figures": {"step": "x", "loss": [], "tokens_per_s": True}}))
    assert diagnose(tmp_path).statement == ""


@pytest.mark.parametrize(
    ("module", "function", "parts"),
    [
        ("analysis/step_times.py", "slower", ["outcome", "statement"]),
        ("tree/settings.py", "place", ["settings"]),
        ("report/notes.py", "_attempts", ["notes"]),
        ("analysis/node_health.py", "node_health", ["env.cpu_starved"]),
    ],
)
def test_an_error_in_one_part_costs_neither_the_report_nor_a_traceback(
    tmp_path: Path, module: str, function: str, parts: list[str]
) -> None:
    """The part has the error in a copy of the package, which a process of its own uses as a user does."""
    (job := tmp_path / "job").mkdir()
    (job / "status.json").write_text('{"state": "finished", "attempt": 0, "schema_version": 1, "step": 40}')
    (job / "train.log").write_text("".join(f"step {step} loss {3 - step / 50}\n" for step in range(40)))
    copied = shutil.copytree(
        ROOT / "diagnostics", tmp_path / "diagnostics", ignore=shutil.ignore_patterns("__pycache__")
    )
    with (copied / module).open("a") as file:
        file.write(f"\n\ndef {function}(*_: object) -> object:\n    return 1 / 0\n")
    command = [sys.executable, "-m", "dtk", "diagnose", str(job), "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert "Traceback" not in done.stdout + done.stderr
    assert len(report["findings"]) > 80
    problems = [problem for row in report["coverage"] for problem in row["problems"]]
    assert [part for part in parts if any(problem.startswith(f"{part}: ") for problem in problems)] == parts
    assert all("ZeroDivisionError" in problem and "report this line" in problem for problem in problems)
    assert report["outcome"] == ("healthy" if parts == ["notes"] else "undecided")
