"""The pipeline: gather the evidence, let every detector decide, choose the root causes, make the report."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import time

from msgspec import Struct, field

from diagnostics import settings
from diagnostics.analysis.layout import named
from diagnostics.analysis.memory.out_of_memory import ran_out
from diagnostics.analysis.printed_steps import printed_steps
from diagnostics.analysis.standing import standing as stands
from diagnostics.analysis.step_profile.account import Account
from diagnostics.causes.registry import Registry, collect
from diagnostics.causes.registry import built_in as built_in_causes
from diagnostics.causes.suspicions import of_memory, suspicions
from diagnostics.contract.causes import AnyCause
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import (
    SURE,
    Detection,
    Detector,
    Finding,
    Outcome,
    Stated,
    Status,
    Worded,
    ruled_out,
    text_of,
)
from diagnostics.contract.formatting import counted, ranks_spoken, seconds_text
from diagnostics.evidence.budget import budget, failure
from diagnostics.evidence.coverage import damaged, unused
from diagnostics.evidence.endings import kind_of_exception
from diagnostics.evidence.limits import Limits, reading
from diagnostics.evidence.model import Evidence, Problem, RankError, shortened
from diagnostics.evidence.readers import process, watch
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.report.coverage import coverage
from diagnostics.report.model import Decided, Report
from diagnostics.report.without_cause import account_text, printed_text, processes_text, run_text
from diagnostics.tree.arbitrate import Verdict, all_leaves, arbitrate
from diagnostics.tree.built_in import built_in
from diagnostics.tree.evaluate import cut_sets, evaluate, own_tree
from diagnostics.tree.load import load
from diagnostics.tree.model import Tree, gates

_TROUBLE: frozenset[str] = frozenset(table_beside(__file__)["trouble"])
"""Kinds of log lines that a job in good health does not write."""
_ENDS: frozenset[Outcome] = frozenset({"crashed", "oom", "hung"})
"""What a run that finished did not do, so that nothing needs to be recorded to rule out a cause of it."""
_SILENT_S = 600.0
"""Ranks write a heartbeat at every step and region. No collective waits for longer by default: torch's NCCL timeout."""
Facts = Callable[[Evidence], object]
"""The analysis that a cause is decided from."""
FAILED = "this detector failed on this evidence"
_ORDER: dict[Status, int] = {"confirmed": 0, "undecided": 1, "ruled_out": 2}


class Options(Struct, frozen=True):
    """What the user can choose."""

    limits: Limits = field(default_factory=Limits)
    trees: tuple[Path, ...] = ()
    """The user's own, beside the built-in ones."""
    progress: Callable[[str], None] | None = None
    """Called with what is being done, many times a second."""


def diagnose(path: Path, options: Options | None = None, source: str = "") -> Report:
    """Explain a run folder, or the leftovers of any job.

    Args:
        path: a folder or a file.
        options: limits, own trees, progress.
        source: how the report calls the path; default: as given.

    Raises:
        DiagnosticsError: there is nothing to diagnose at `path`, or a tree file is wrong.
    """
    from diagnostics.evidence.gather import gather

    options = options or Options()
    registry = collect()
    trees = _trees(options.trees, registry)
    tell = options.progress or (lambda text: None)
    with reading(lambda file, share: tell(f"reading {file.name}: {min(share, 1.0):.0%}")):
        evidence = gather(path, options.limits, options.progress)
        evidence.problems.extend(registry.problems)
        findings, measures = decide(registry, evidence, tell)
    if why := unused(evidence):
        more = f" (and {len(why) - 1} more files)" if len(why) > 1 else ""
        raise DiagnosticsError(f"nothing in {path} can be used: {why[0].file}: {why[0].what}{more}")
    with budget(evidence.limits, evidence.disk_bytes):
        placed = named(evidence, settings.place(evidence, settings.mark_planted(evidence, findings)))
        return conclude(evidence, trees, placed, measures, source or str(path))


def conclude(
    evidence: Evidence, trees: Sequence[Tree], findings: Iterable[Finding], measures: dict[str, object], source: str
) -> Report:
    """Return the report on what the detectors found."""
    every = list(findings)
    decided_causes = {finding.cause for finding in every}
    if homeless := decided_causes - set(all_leaves(trees)):
        trees = [*trees, own_tree(homeless)]
    table = all_leaves(trees)
    silent = table.keys() - decided_causes
    every += [Finding(cause=cause, status="undecided", facts=Stated("No detector decided it.")) for cause in silent]
    # The same order whatever the order of files and detectors.
    ordered = sorted(every, key=lambda f: (_ORDER[f.status], f.cause, f.ranks, f.position or 0, text_of(f).summary))
    verdict = arbitrate(trees, ordered)
    named = (rank + 1 for finding in ordered if finding.group for rank in finding.group.ranks)
    world_size = max([evidence.world_size or 0, *named])
    decided = tuple(Decided(finding, verdict.explained.get(n, ())) for n, finding in enumerate(ordered))
    outcome, overlap = _outcome(evidence, verdict, ordered, measures), measures.get("overlap")
    shares = overlap.get("account") if isinstance(overlap, dict) else None
    account = Account(**shares) if shares else None  # Where the time of a step went, as far as traces tell.
    standing = _standing(evidence, ordered, measures)
    open_log = not (verdict.roots or outcome == "healthy" or any(map(evidence.handles, (FlightFile, RingFile))))
    waiting = stands(evidence) if open_log else None
    pruned = [finding.cause for finding in ordered if finding.status == "ruled_out"]
    if account is not None and outcome == "healthy":
        standing = account_text(account)
        if account.unaccounted:
            outcome, standing = "undecided", f"no cause is confirmed, and the time is not accounted for: {standing}"
    elif outcome == "healthy":
        standing = run_text(evidence.run) if evidence.run else ""
    elif account is not None and outcome == "undecided" and not (standing or evidence.run or _trouble(evidence)):
        standing = f"no cause is confirmed: {account_text(account)}"
    notes = list(_notes(evidence, verdict.roots, waiting.told if waiting else frozenset()))
    if not verdict.roots:  # What the versions of the job may be behind, where its own text does not show it.
        noted = {cause.id for cause in built_in_causes() if cause.noted}
        open_ones = (f for f in ordered if f.cause in noted and f.status == "undecided")
        bugs = [text_of(finding) for finding in open_ones if isinstance(finding.facts, Worded)]
        notes += [f"{text.summary} {text.missing}" for text in bugs]
    if outcome == "slow" and account is not None and account.unaccounted:
        notes.append(f"Where the time goes: {account_text(account)}.")
    suspected = of_memory(ran_out(evidence), printed_steps(evidence).count) if open_log and not waiting else ()
    if waiting:
        suspected = suspicions(waiting, pruned)
    return Report(
        source=source,
        outcome=outcome,
        root_causes=verdict.roots,
        findings=decided,
        tree=evaluate(trees, ordered),
        cut_sets=tuple(cut_sets(trees, ordered)),
        measures=dict(measures),
        coverage=coverage(evidence, world_size),
        titles={cause: leaf.title for cause, leaf in table.items()},
        world_size=world_size or None,
        notes=tuple(notes),
        waiting=waiting,
        suspicions=suspected,
        standing=standing,
        run_folder=str(evidence.run.root) if evidence.run else None,
    )


def decide(
    registry: Registry, evidence: Evidence, tell: Callable[[str], None], instead: Mapping[Facts, Facts] | None = None
) -> tuple[list[Finding], dict[str, object]]:
    """Decide every cause; whatever one of them does, the others are decided.

    Args:
        registry: all causes and detectors.
        evidence: what was read.
        tell: called with a line of progress for each cause.
        instead: analysis of a cause -> the analysis to run in its place, for a caller that knows more than the files.

    Returns:
        the findings, and the measures for the report.
    """
    findings: list[Finding] = []
    measures: dict[str, object] = {}
    finished = watch.ended_well(evidence) or (evidence.run is not None and evidence.run.state == "finished")
    facts: dict[Facts, object] = {}
    for cause in registry.causes:
        tell(f"deciding: {cause.id}")
        try:
            with budget(evidence.limits, evidence.disk_bytes):
                decided = _decided(cause, evidence, facts, measures, (instead or {}).get(cause.facts, cause.facts))
        except Exception as error:
            why = f"{FAILED}: {failure(error)}"
            evidence.problems.append(Problem("cause", cause.id, why))
            decided = [Finding(cause=cause.id, status="undecided", facts=Stated(f"{why[:1].upper()}{why[1:]}"))]
        if finished and cause.outcome in _ENDS and all(finding.status == "undecided" for finding in decided):
            decided = [ruled_out(cause.id, "The run finished.", "finished")]
        findings += decided
    for detector in registry.detectors:
        tell(f"deciding: {detector.name}")
        detection = run_detector(detector, evidence)
        findings += detection.findings
        measures.update(detection.measures)
    return findings, measures


def _decided(
    cause: AnyCause, evidence: Evidence, facts: dict[Facts, object], measures: dict[str, object], analyse: Facts
) -> list[Finding]:
    """Return the findings of one cause. Facts that could not be built are not built again for the next one."""
    if cause.facts not in facts:
        try:
            facts[cause.facts] = analyse(evidence)
            if callable(measured := getattr(facts[cause.facts], "measures", None)):
                measures.update(measured())
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # It may be memory that ran out.
            facts[cause.facts] = error
    if isinstance(built := facts[cause.facts], Exception):
        raise built
    decided = list(cause.decide(built))
    if not decided or any(finding.cause != cause.id for finding in decided):
        raise ValueError("it gave no finding of its own")
    for finding in decided:
        text_of(finding)  # A sentence that cannot be made is the cause's failure, not the report's.
    return decided


def run_detector(detector: Detector, evidence: Evidence) -> Detection:
    """One detector's findings; whatever it does, every cause of it is decided afterwards."""
    why = f"{detector.name} did not decide it"
    try:
        with budget(evidence.limits, evidence.disk_bytes):
            detection = detector.detect(evidence)
            if not isinstance(detection, Detection):
                raise TypeError("it returned no Detection")
            if not all(isinstance(finding, Finding) for finding in detection.findings):
                raise TypeError("it returned no findings")
            for finding in detection.findings:
                text_of(finding)
    except Exception as error:
        why = f"{FAILED}: {failure(error)}"
        evidence.problems.append(Problem("detector", detector.name, f"{why}; its causes are undecided"))
        detection = Detection([])
    decided = {finding.cause for finding in detection.findings}
    detection.findings += [
        Finding(cause=cause, status="undecided", facts=Stated(why)) for cause in detector.causes if cause not in decided
    ]
    return detection


def _trees(files: Sequence[Path], registry: Registry) -> list[Tree]:
    trees = built_in()
    ids = set(all_leaves(trees)) | registry.ids
    taken = {gate.id: tree.file for tree in trees for gate in gates(tree.top)}
    for file in files:
        tree = load(file, ids)
        for gate in gates(tree.top):  # Reports could not tell two branches of one id apart.
            if gate.id in taken:
                what = f"{tree.file}: the id {gate.id!r} is taken by {Path(taken[gate.id]).name}"
                raise DiagnosticsError(what, "choose another")
        taken |= {gate.id: tree.file for gate in gates(tree.top)}
        trees.append(tree)
    return [*trees, own_tree(homeless)] if (homeless := registry.ids - set(all_leaves(trees))) else trees


def _outcome(evidence: Evidence, verdict: Verdict, findings: Sequence[Finding], measures: dict[str, object]) -> Outcome:
    """Of the first root cause; without one it is healthy only when nothing speaks against it."""
    state = evidence.run.state if evidence.run else ""
    if watch.ended_well(evidence):
        state = "finished"
    traits = {cause.id: cause for cause in built_in_causes()}
    if verdict.outcome is not None:
        root = traits.get(verdict.roots[0].cause)
        ran_out = state == "oom" or any(fact.kind in ("cuda_oom", "cpu_oom") for fact in evidence.facts)
        memory = verdict.roots[0].cause.startswith("memory.")
        fitted = root is not None and root.may_complete and _fitted(evidence, measures)
        if verdict.outcome == "hung" and (state == "finished" or fitted):
            return "diverged"  # nothing hangs: the ranks' calls differed and fitted by chance
        signs = {"failed"} & {state} | ({"unreduced"} if _refused(evidence) else set())
        signs |= {"refused"} if any(fact.kind == "port_in_use" for fact in evidence.facts) else set()
        if verdict.outcome == "hung" and root is not None and root.crash_when in signs:
            return "crashed"
        return "oom" if verdict.outcome == "at_risk" and memory and ran_out else verdict.outcome
    if damaged(evidence) or any(problem.kind in ("cause", "detector") for problem in evidence.problems):
        return "undecided"  # What a detector that failed would have found is not known either.
    if state in ("finished", "preempted", "running"):
        warned = any(fact.kind == "nccl_warn" for fact in evidence.facts)
        warned |= any(finding.status == "confirmed" and finding.confidence < SURE for finding in findings)
        return "undecided" if warned or (state == "running" and _silent(evidence)) else "healthy"
    confirmed = [traits[f.cause] for f in findings if f.status == "confirmed" and f.cause in traits]
    if outcome := next((cause.outcome for cause in confirmed if cause.names_outcome), None):
        return outcome  # Though not why.
    suspected = any(finding.status == "confirmed" and finding.confidence < SURE for finding in findings)
    # Variables in order, printed losses and a log without trouble say nothing about the job's end.
    decided = any(finding.status == "ruled_out" and not finding.cause.startswith("env.") for finding in findings)
    decided &= not evidence.facts or any(evidence.files.values())
    # Dumps and stacks are mostly taken of jobs that hang: while a hang is possible they show no good health.
    open_hang = any(finding.status == "undecided" and finding.cause.startswith("hang.") for finding in findings)
    hang = open_hang and bool(evidence.stacks or any(map(evidence.handles, (FlightFile, RingFile))))
    return "undecided" if state or suspected or hang or _trouble(evidence) or not decided else "healthy"


def _silent(evidence: Evidence) -> str:
    """Return why a run that says that it is going on may have ended; empty where it is seen or was heard of lately."""
    run = evidence.run
    if run is None or run.state != "running" or run.seen:
        return ""
    silent_s = run.silent_s(time())
    if silent_s is not None and silent_s < _SILENT_S:
        return ""
    last = "no rank has left a heartbeat" if silent_s is None else f"its last heartbeat is {seconds_text(silent_s)} old"
    return f"status.json says that the run is going on, but {last}, and its processes are on another machine"


def _fitted(evidence: Evidence, measures: dict[str, object]) -> bool:
    """Whether ranks called different things, and yet every call completed and the job ended without a word."""
    hang = measures.get("hang")
    if any(fact.kind == process.KIND for fact in evidence.facts):
        return False  # It still runs.
    return isinstance(hang, dict) and hang.get("ranks_waiting") == 0 and not _trouble(evidence)


def _refused(evidence: Evidence) -> bool:
    """Whether DDP ended the job itself, as it does when the reduction of the step before was not complete."""
    kinds = (kind_of_exception(error.type, error.message, error.frames) for error in evidence.errors)
    return "unreduced" in kinds or any(fact.kind == "ddp_unused" for fact in evidence.facts)


def _trouble(evidence: Evidence) -> bool:
    """Whether something was left behind that a healthy job does not leave."""
    return bool(evidence.errors) or any(
        fact.kind in _TROUBLE or (fact.kind == "start" and fact.fields["state"] != "met") for fact in evidence.facts
    )


def _suspicious(evidence: Evidence, covered: frozenset[str]) -> Iterable[str]:
    """Yield the lines of trouble that nothing explains or tells in words, the first of each kind."""
    facts: dict[str, str] = {}
    for fact in evidence.facts:
        if fact.kind in _TROUBLE - covered:
            facts.setdefault(fact.kind, f"{fact.file}:{fact.line}: {shortened(fact.text, 200)}")
    said = ((error, shortened(f"{error.type} {error.message}".strip(), 200)) for error in evidence.errors)
    ends = [f"{_at(error)}: rank {error.rank}: {text}" for error, text in said if error.rank is not None]
    yield from [*ends[:2], *facts.values()][:4]


def _why(error: RankError | None) -> str:
    """Return what ended an earlier attempt, as the rest of a sentence."""
    if error is None:
        return "; it left no error file"
    who = "" if error.rank is None else f"rank {error.rank}: "
    text = f"{error.type}: {error.message}" if error.type else f"{error.signal or f'exit code {error.exit_code}'}"
    return f": {who}{shortened(' '.join(text.split()), 200)} ({_at(error)})"


def _at(error: RankError) -> str:
    return f"{error.file}:{error.line}" if error.line else error.file


def _standing(evidence: Evidence, findings: Sequence[Finding], measures: dict[str, object]) -> str:
    """Return what can be said about the job without a cause."""
    if evidence.doubt:
        return "the dumps may be of different jobs, so the ranks are not compared"
    apart = [text_of(finding).summary for finding in findings if finding.status == "undecided" and finding.victims]
    if apart:
        return apart[0].partition(". ")[0].rstrip(".")
    stopped = [f for f in findings if f.cause == "env.job_stopped" and f.status == "undecided"]
    if silent := _silent(evidence):
        return silent
    lost = evidence.run is not None and evidence.run.lost
    if stopped and (lost or any(fact.kind == "job_stopped" for fact in evidence.facts)):
        return text_of(stopped[0]).summary.rstrip(".")
    if logs := next((fact.fields["logs"] for fact in evidence.facts if fact.kind == "nothing_known"), 0):
        return f"no line of {counted(logs, 'log')} is known to be trouble, which alone does not show what the job did"
    if processes := processes_text(evidence):
        return processes
    if not any(evidence.files.values()) and not _trouble(evidence) and (steps := printed_text(printed_steps(evidence))):
        return steps
    hang = measures.get("hang")
    if not isinstance(hang, dict) or _trouble(evidence) or damaged(evidence) or hang.get("ranks_waiting"):
        return ""
    if not hang.get("ranks") or hang["ranks"] != hang.get("world_size"):
        return ""
    if not hang["calls_compared"]:
        return f"the dumps of all {hang['ranks']} ranks hold no collective; send and recv may not be recorded"
    return (
        f"all {hang['calls_compared']:,} recorded calls completed on all {hang['ranks']} ranks; "
        "what is not recorded (send, recv, monitored_barrier) may still hang"
    )


def _notes(evidence: Evidence, roots: Sequence[Finding], covered: frozenset[str]) -> Iterable[str]:
    explained, shown = bool(roots), {f"{item.file}:{item.line}" for root in roots for item in root.evidence}
    if evidence.doubt:
        yield evidence.doubt
    if not explained:
        yield from _suspicious(evidence, covered)
        shown |= {f"{fact.file}:{fact.line}" for fact in evidence.facts if fact.kind in _TROUBLE - covered}
    for attempt in evidence.earlier:
        gone = f"; {ranks_spoken(attempt.silent)} left no error file (killed, or aborted in native code)"
        why = _why(attempt.error) + (gone if attempt.silent else "")
        yield f"Attempt {attempt.attempt} failed and the job was restarted{why}"
    homeless = [error for error in evidence.errors if error.rank is None and error.type and _at(error) not in shown]
    for error in homeless[:4]:
        at = f" ({error.frames[0].file}:{error.frames[0].line})" if error.frames else ""
        text = shortened(" ".join(f"{error.type}: {error.message}".split()), 200)
        yield f"{error.file}:{error.line} is an exception of an unidentified rank: {text}{at}"
    status = evidence.run.status if evidence.run else None
    if evidence.run and evidence.run.lost:
        yield (
            "status.json says that the run is going on, but its process is gone. Look who killed it: dmesg -T (out of "
            "memory), last -x reboot, or the scheduler's record (sacct -j JOB, kubectl describe pod POD)."
        )
    elif status is not None and status.state == "running" and not _silent(evidence):
        yield "The run is still going: this is what its records say so far."
    elif evidence.run and status is None:
        yield "The run folder has no readable status.json, so how it ended is taken from the other records."
    if status is not None and status.state in ("failed", "hung", "oom") and status.reason and not explained:
        yield f"The launcher recorded: {status.reason}"
