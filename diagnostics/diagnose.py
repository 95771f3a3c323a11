"""The pipeline: gather evidence, run all detectors, select the root causes, build the report."""

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.analysis.memory.out_of_memory import ran_out
from diagnostics.analysis.printed_steps import printed_steps
from diagnostics.analysis.run_records import named
from diagnostics.analysis.step_times import slower
from diagnostics.analysis.symptoms.gather import symptoms
from diagnostics.analysis.symptoms.state import Symptoms
from diagnostics.causes.declared import Texts
from diagnostics.causes.registry import Registry, by_id, collect
from diagnostics.causes.suspicions import of_finding, of_memory, suspected_of, suspicions
from diagnostics.contract.causes import AnyCause
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.contract.files import inside
from diagnostics.contract.findings import SUSPECTED, Detection, Detector, Finding, Status, Suspicion, text_of
from diagnostics.evidence.budget import budget, failure
from diagnostics.evidence.job.registry import unused
from diagnostics.evidence.limits import Limits, reading
from diagnostics.evidence.model import MOST_RANKS, Evidence, Problem
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.report.model import Decided, Report
from diagnostics.report.notes import coverage, notes
from diagnostics.report.symptoms import headline, positions
from diagnostics.report.without_cause import Statement, run_measures, without_cause
from diagnostics.tree import settings
from diagnostics.tree.arbitrate import all_leaves, arbitrate, settled
from diagnostics.tree.load import built_in, load
from diagnostics.tree.model import Tree, cut_sets, evaluate, gates, own_tree
from diagnostics.tree.outcome import outcome, state_of

Facts = Callable[[Evidence], object]  # The analysis whose result a cause is decided from.
T = TypeVar("T")
_TEXTS = Texts(__file__)
_ORDER: dict[Status, int] = {"confirmed": 0, "undecided": 1, "ruled_out": 2}


class Options(Struct, frozen=True):
    """Options of a diagnosis."""

    limits: Limits = field(default_factory=Limits)
    trees: tuple[Path, ...] = ()
    """Custom trees, in addition to the built-in ones."""
    progress: Callable[[str], None] | None = None
    """Called with the current activity, many times a second."""


def diagnose(path: Path, options: Options | None = None, source: str = "") -> Report:
    """Diagnose a run folder, or the files of any job.

    `source` is the name of the path in the report. DiagnosticsError if `path` contains no evidence, or a tree file is
    invalid.
    """
    from diagnostics.evidence.job.gather import gather

    options = options or Options()
    registry = collect()
    trees = _trees(options.trees, registry)
    tell = options.progress or (lambda text: None)
    with inside(path), reading(lambda file, share: tell(f"reading {file.name}: {min(share, 1.0):.0%}")):
        evidence = gather(path, options.limits, options.progress)
        evidence.problems.extend(registry.problems)
        findings, measures = decide(registry, evidence, tell)
    if why := unused(evidence):
        more = f" (and {len(why) - 1} more files)" if len(why) > 1 else ""
        raise DiagnosticsError(f"nothing in {path} can be used: {why[0].file}: {why[0].what}{more}")
    with budget(evidence.limits, evidence.disk_bytes):
        marked = settings.mark_injected(evidence, findings)
        place = partial(settings.place, evidence, marked)
        placed = _guarded(evidence, "cause", "settings", lambda: [*named(evidence, place())], lambda why: findings)
        return conclude(evidence, trees, placed, measures, source or str(path))


def conclude(
    evidence: Evidence, trees: Sequence[Tree], findings: Iterable[Finding], measures: dict[str, object], source: str
) -> Report:
    """Return the report on the detectors' findings."""
    every = list(findings)
    decided_causes = {finding.cause for finding in every}
    if unlisted := decided_causes - set(all_leaves(trees)):
        trees = [*trees, own_tree(unlisted)]
    table = all_leaves(trees)
    silent = table.keys() - decided_causes
    every += _undecided(silent, "no_detector")
    # Sort, so that the order of files and detectors does not matter.
    every = settled(trees, every, finished=state_of(evidence) == "finished")
    ordered = sorted(every, key=lambda f: (_ORDER[f.status], f.cause, f.ranks, f.position or 0, text_of(f).summary))
    verdict = arbitrate(trees, ordered)
    named = (rank for finding in ordered if finding.group for rank in finding.group.ranks)
    world_size = max([evidence.world_size or 0, *(rank + 1 for rank in named if rank < MOST_RANKS)])
    decided = tuple(Decided(finding, verdict.explained.get(n, ())) for n, finding in enumerate(ordered))
    slowed = cache(lambda: slower(printed_steps(evidence)))
    decide_outcome = partial(outcome, evidence, verdict, ordered, measures, slowed)
    happened = _guarded(evidence, "cause", "outcome", decide_outcome, lambda why: verdict.outcome or "undecided")
    open_log = not (verdict.roots or happened == "healthy" or any(map(evidence.handles, (FlightFile, RingFile))))
    ruled_out = [finding.cause for finding in ordered if finding.status == "ruled_out"]
    root = by_id().get(verdict.roots[0].cause) if verdict.roots else None
    ran_dry = happened == "oom" and root is not None and root.names_outcome  # It is unknown what used the memory.
    suspect = partial(_suspected, evidence, ruled_out, ran_dry, happened == "oom")
    shown = _guarded(evidence, "cause", "suspicions", suspect, lambda why: None) if open_log or ran_dry else None
    waiting, suspected = shown or (None, ())
    unsure = [finding for finding in ordered if finding.suspected]
    weighed = {finding.cause for finding in unsure} & suspected_of("end").keys()
    suspected = suspected if len(weighed) < 2 else ()  # Several findings are weighed by more than words of the log.
    by_calls = suspected and waiting and waiting.peer_calls
    said = {cause.id for cause in by_id().values() if cause.names_outcome and cause.outcome == happened}
    said |= {suspicion.cause for suspicion in suspected} | {c.id for c in by_id().values() if c.weighed and by_calls}
    suspected = (*suspected, *(of_finding(finding) for finding in unsure if finding.cause not in said))
    shown_kinds = waiting.shown_kinds if waiting else frozenset()
    state = partial(without_cause, evidence, happened, ordered, measures, slowed)
    statement = _guarded(evidence, "cause", "statement", state, lambda why: Statement())
    note = partial(notes, evidence, happened, verdict.roots, ordered, measures, shown_kinds, statement.quotes_launcher)
    noted = _guarded(evidence, "cause", "notes", note, lambda why: ())
    return Report(
        source=source,
        outcome=happened,
        root_causes=verdict.roots,
        findings=decided,
        tree=evaluate(trees, ordered),
        cut_sets=tuple(cut_sets(trees, ordered)),
        measures={**measures, "run": of_run} if (of_run := run_measures(evidence.run)) else dict(measures),
        coverage=coverage(evidence, world_size),
        titles={cause: leaf.title for cause, leaf in table.items()},
        world_size=world_size or None,
        notes=noted,
        waiting=waiting,
        suspicions=tuple(sorted(suspected, key=lambda suspicion: -suspicion.probability)),
        statement=statement.text,
        stated=statement.cause,
        figures=statement.figures,
        asks=statement.asks,
        run_folder=str(evidence.run.root) if evidence.run else None,
    )


def _suspected(
    evidence: Evidence, ruled_out: Sequence[str], dry: bool, oom: bool
) -> tuple[Symptoms | None, tuple[Suspicion, ...]]:
    """Return the waiting ranks and the likely causes by a log that confirms none; only of memory if that ran out.

    Where memory ran out, exit codes and connections that broke follow from it.
    """
    if dry or (waiting := symptoms(evidence)) is None or (oom and not waiting.waits):
        return None, of_memory(ran_out(evidence), printed_steps(evidence).count)
    headline(waiting), [*positions(waiting)]  # If these texts fail, they fail here, inside the guard.
    return waiting, suspicions(waiting, ruled_out)


def decide(
    registry: Registry, evidence: Evidence, tell: Callable[[str], None], instead: Mapping[Facts, Facts] | None = None
) -> tuple[list[Finding], dict[str, object]]:
    """Decide every cause; return the findings and the report's measures. A failure in one does not affect the others.

    `instead` replaces the analysis of a cause, for a caller with more information than the files.
    """
    findings: list[Finding] = []
    measures: dict[str, object] = {}
    facts: dict[Facts, object] = {}
    of_facts: defaultdict[Facts, list[Finding]] = defaultdict(list)
    for cause in registry.causes:
        tell(f"deciding: {cause.id}")
        analyse = (instead or {}).get(cause.facts, cause.facts)
        work = partial(_decided, cause, evidence, facts, measures, analyse)
        decided = _guarded(evidence, "cause", cause.id, work, partial(_undecided, (cause.id,), "failed"))
        findings += decided
        of_facts[cause.facts] += decided
    for analysis, of_causes in of_facts.items():
        if callable(measured := getattr(facts.get(analysis), "measures_of", None)):
            measures.update(_guarded(evidence, "cause", "measures", partial(measured, of_causes), lambda why: {}))
    for detector in registry.detectors:
        tell(f"deciding: {detector.name}")
        detection = run_detector(detector, evidence)
        findings += detection.findings
        measures.update(detection.measures)
    return findings, measures


def _undecided(causes: Iterable[str], row: str, text: str = "") -> list[Finding]:
    return [Finding(cause=cause, status="undecided", facts=_TEXTS.facts(row, text=text)) for cause in causes]


def _guarded(evidence: Evidence, kind: str, name: str, work: Callable[[], T], failed: Callable[[str], T]) -> T:
    """Run a part of the diagnosis within its budget. If it fails, add a problem and return `failed(reason)`.

    Whatever reads evidence runs in here, so that an error in one part costs that part of the report only.
    """
    try:
        with budget(evidence.limits, evidence.disk_bytes):
            return work()
    except Exception as error:
        why = failure(error)
        evidence.problems.append(Problem(kind, name, "detector_failed", figures={"why": why}))
        return failed(why)


def _decided(
    cause: AnyCause, evidence: Evidence, facts: dict[Facts, object], measures: dict[str, object], analyse: Facts
) -> list[Finding]:
    """Return the findings of one cause. Facts that failed are not computed again for the next cause."""
    if cause.facts not in facts:
        try:
            facts[cause.facts] = analyse(evidence)
            if callable(measured := getattr(facts[cause.facts], "measures", None)):
                measures.update(measured())
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # This may be because memory ran out.
            facts[cause.facts] = error
    if isinstance(built := facts[cause.facts], Exception):
        raise built
    decided = list(cause.decide(built))
    if not decided or any(finding.cause != cause.id for finding in decided):
        raise ValueError("it returned no finding for it")
    apart = {(fact.file, fact.line) for fact in evidence.facts if "apart" in fact.fields}
    for n, finding in enumerate(decided):
        _check_texts(finding)
        if finding.evidence and apart >= {(item.file, item.line) for item in finding.evidence}:  # A suspicion.
            decided[n] = replace(finding, confidence=min(finding.confidence, SUSPECTED))
    return decided


def _check_texts(finding: Finding) -> None:
    """Format all text of a finding once, so that an error becomes its cause's failure, not the report's."""
    text_of(finding)
    for phrase in (*(item.detail for item in finding.evidence), *(where.does for where in finding.where)):
        str(phrase)


def run_detector(detector: Detector, evidence: Evidence) -> Detection:
    """Run one detector; causes that it fails to decide are undecided."""

    def detected() -> Detection:
        detection = detector.detect(evidence)
        if not isinstance(detection, Detection):
            raise TypeError("it returned no Detection")
        if not all(isinstance(finding, Finding) and finding.cause for finding in detection.findings):
            raise TypeError("it returned something that is not a finding")
        for finding in detection.findings:
            _check_texts(finding)
        return detection

    failed = partial(_undecided, detector.causes, "failed")
    detection = _guarded(evidence, "detector", detector.name, detected, lambda why: Detection(failed(why)))
    decided = {finding.cause for finding in detection.findings}
    detection.findings += _undecided((c for c in detector.causes if c not in decided), "left_out", detector.name)
    return detection


def _trees(files: Sequence[Path], registry: Registry) -> list[Tree]:
    trees = built_in()
    ids = set(all_leaves(trees)) | registry.ids
    taken = {gate.id: tree.file for tree in trees for gate in gates(tree.top)}
    for file in files:
        tree = load(file, ids)
        for gate in gates(tree.top):  # Reports could not distinguish two branches with one id.
            if gate.id in taken:
                what = f"{tree.file}: the id {gate.id!r} is taken by {Path(taken[gate.id]).name}"
                raise DiagnosticsError(what, "choose another")
        taken |= {gate.id: tree.file for gate in gates(tree.top)}
        trees.append(tree)
    return [*trees, own_tree(unlisted)] if (unlisted := registry.ids - set(all_leaves(trees))) else trees
