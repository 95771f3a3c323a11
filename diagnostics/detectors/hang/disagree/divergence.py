"""Ranks that disagree about the sequence of collectives: what `diagnostics.analysis.divergence` finds, as findings."""

from diagnostics.analysis.divergence import Divergence
from diagnostics.analysis.divergence import find as find_divergences
from diagnostics.causes.hang import _asymmetric
from diagnostics.contract.findings import EvidenceItem, Finding, Where
from diagnostics.contract.strategy_traits import strategy_traits
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.evidence.rank_endings import mismatch_facts


def find(context: Context, known: Divergence | None = None) -> list[Finding]:
    """Return confirmed divergences: the earliest one, and those of groups it cannot have touched.

    Args:
        context: all ranks' calls.
        known: the divergence, where more is known than the calls up to the stall.
    """
    divergences = (
        [known]
        if known is not None
        else find_divergences(
            context.survey,
            context.reading.calls,
            context.waits.reaching,
            ended=[rank for rank, end in context.ends.items() if end.in_order],
            steps=_stopped_early(context),
        )
    )
    found = []
    for divergence in divergences:
        vote = divergence.vote
        touched = set(context.survey.members(vote.key)) | set(vote.present)
        context.settled |= touched | context.waits.reaching(touched)
        context.blamed |= set(divergence.culprits)
        context.siblings = context.siblings or _asymmetric.ruled_out(divergence)
        found += findings(context, divergence)
    return found


def _stopped_early(context: Context) -> dict[int, bool]:
    """Ranks of a dtk run -> whether they left the loop before the last step that was asked for."""
    run = context.evidence.run
    steps = run.get("train.steps") if run is not None else None
    if not isinstance(steps, int):
        return {}
    return {rank: (context.step_of(rank) or steps) < steps for rank in context.survey.ranks}


def findings(context: Context, divergence: Divergence, payload_text: str = "") -> list[Finding]:
    """Return one finding, or one for each kind where two explain the same calls: then none is sure.

    Args:
        context: of the job.
        divergence: to report.
        payload_text: what gloo printed when it ended a process whose message did not fit.
    """
    survey, vote, explanation = context.survey, divergence.vote, divergence.explanation
    victims = set(survey.members(vote.key)) | set(vote.present) | context.waits.reaching(vote.present)
    run = context.evidence.run
    details = {
        divergence.minority_rank: f"#{divergence.minority.seq} is {divergence.minority.text}",
        divergence.majority_rank: f"#{divergence.majority.seq} is {divergence.majority.text}",
    }
    lines: tuple[EvidenceItem, ...] = ()
    if divergence.kind in {"other_arguments", "other_operation"} or payload_text:
        facts = mismatch_facts(context.evidence)[:2]
        lines = tuple(EvidenceItem("log", fact.file, fact.text, fact.line) for fact in facts)
    found = []
    for kind in (divergence.kind, *explanation.alternatives):
        facts_of = _asymmetric.Disagreement(
            divergence,
            kind,
            tuple(rank for rank in vote.silent if rank not in survey.ranks),
            ddp=run is not None and strategy_traits(run.manifest, run.config).gradients_in == "buckets",
            payload_text=payload_text,
        )
        finding = Finding(
            cause=_asymmetric.CAUSES[kind],
            status="confirmed",
            facts=facts_of,
            confidence=divergence.confidence,
            ranks=divergence.culprits,
            victims=tuple(sorted(victims - set(divergence.culprits))),
            group=say.group(survey, vote.key),
            position=None if payload_text else divergence.position,
            step=divergence.minority.step or divergence.majority.step,
            where=tuple(_places(facts_of)),
            cost=context.cost(),
            evidence=(*say.flight(survey, details), *lines),
        )
        found.append(finding)
    return found


def _places(facts: "_asymmetric.Disagreement") -> list[Where]:
    """Return the lines of both sides, the minority's first."""
    divergence = facts.divergence
    if facts.kind not in {"left_out", "fewer_iterations", "gradients_not_ready"}:
        return [
            *say.where(divergence.minority_rank, divergence.minority),
            *say.where(divergence.majority_rank, divergence.majority),
        ]
    there = say.where(divergence.majority_rank, divergence.majority, f"waits in {divergence.majority.text}")
    does = f"{'ends after' if divergence.ended else 'is already in'} {divergence.minority.text}"
    return [
        *say.where(divergence.minority_rank, divergence.minority, does),
        *(there or say.where(divergence.majority_rank, facts.calls[0])),
    ]
