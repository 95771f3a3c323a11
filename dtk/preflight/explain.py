"""The report on a simulated job that stands, by the causes of `dtk diagnose`. Beyond what a real run leaves it knows
what every rank would have called later, and by how many bytes two ends of a transfer differ.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.single_calls import misfit as misfit_divergence
from diagnostics.analysis.divergence.whole_programs import Program, compare_programs
from diagnostics.analysis.stall.explain import explain as explain_stall
from diagnostics.causes.registry import collect
from diagnostics.diagnose import conclude, decide
from diagnostics.evidence.model import Evidence
from diagnostics.report.model import Report
from diagnostics.tree.built_in import built_in
from dtk.preflight.calls import Record
from dtk.preflight.evidence import whole_history
from dtk.preflight.match import Misfit


def explain(evidence: Evidence, divergence: Divergence | None, source: str) -> Report:
    """Return the report on ranks that stand.

    Args:
        evidence: the stuck state; see `dtk.preflight.evidence`.
        divergence: what the whole programs show; None where the calls up to the stall are to decide.
        source: how the report calls the job.
    """
    registry = collect()
    evidence.problems.extend(registry.problems)
    explained = partial(explain_stall, divergence=divergence)
    causes = registry.causes
    registry.causes = tuple(replace(c, facts=explained) if c.facts is explain_stall else c for c in causes)
    findings, measures = decide(registry, evidence, lambda _: None)
    return conclude(evidence, built_in(), findings, measures, source)


def divergence_of(records: Mapping[int, Record], misfit: Misfit | None) -> Divergence | None:
    """Return how the ranks' whole programs differ; None when a rank failed, or when the calls do not tell.

    Args:
        records: of all ranks.
        misfit: calls that meet with different lengths, if these stop the job.
    """
    if misfit is not None:
        sent = whole_history(records[misfit.sender])[misfit.sent]
        taken = whole_history(records[misfit.receiver])[misfit.taken]
        return misfit_divergence(taken, sent, misfit.receiver, misfit.sender, misfit.sent_bytes, misfit.taken_bytes)
    if any(record.end.kind not in ("finished", "exited") or record.end.code for record in records.values()):
        return None
    alike: dict[tuple[object, ...], list[Record]] = {}
    for record in records.values():
        labels = tuple(record.label(index) for index in range(len(record.groups)))
        alike.setdefault((id(record.program), labels, record.rounds), []).append(record)
    programs = []
    for first, *others in alike.values():
        calls = tuple(call for call in whole_history(first) if not call.p2p)
        ranks_of = {group.name: group.ranks for group in reversed(first.groups)}
        members = {call.key: ranks_of[call.key.name] for call in calls}
        programs.append(Program((first.rank, *(other.rank for other in others)), calls, members, first.rounds))
    return compare_programs(programs)
