"""Gradients that never became ready on some ranks, so that a bucket was not reduced there."""

from diagnostics.analysis.stall.endings import DdpUnused, line
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._divergence import Disagreement, Reading, decided
from diagnostics.contract.findings import Finding, Remedy, Text, worded
from diagnostics.contract.formatting import counted, ranks_spoken, sentence
from diagnostics.evidence.model import shortened

ID = "hang.unused_parameters"


def _summary(facts: Disagreement) -> str:
    return facts.filled(
        "{side:^} left the backward pass without {theirs_at}, which {rest} {rest:waits|wait} in: some of its "
        "parameters got no gradient in this step."
    )


def _remedies(facts: Disagreement) -> tuple[Remedy, ...]:
    majority = facts.divergence.majority
    if majority.wire.op == "all_reduce":
        return under_ddp(f" (waits at {majority.place})", is_dtk_run=facts.ddp)
    change = f"let every parameter take part in the loss (waits at {majority.place})"
    return (Remedy("code", change, "gradients are reduced only when they are ready"),)


def under_ddp(at: str, *, is_dtk_run: bool) -> tuple[Remedy, ...]:
    """Return how to fix it under DDP; `at` is appended to the change of the code."""
    change = f"let every parameter take part in the loss, or set find_unused_parameters=True in DDP{at}"
    code = Remedy("code", change, "DDP reduces a bucket only when all its gradients are ready")
    why = "DDP then marks parameters without a gradient as ready"
    return (Remedy("override", "strategy.find_unused_parameters=true", why), code) if is_dtk_run else (code,)


def _ddp_text(finding: Finding, case: DdpUnused, is_dtk_run: bool) -> Text:
    who = sentence(ranks_spoken(case.ranks)) if case.ranks else "A rank"
    names = f" ({shortened(case.names, 120)})" if case.names else ""
    return Text(
        summary=f"{who} ran the backward pass without a gradient for some parameters{names}, so DDP could not finish "
        "its reduction.",
        measured=f"{counted(len(case.facts), 'message')} of DDP",
        remedies=under_ddp("", is_dtk_run=is_dtk_run),
    )


READING = Reading(
    ID, ("gradients_not_ready",), _summary, _remedies, not_this="No rank left the backward pass early: {why}."
)


def decide(stall: Stall) -> list[Finding]:
    """Decide it by the first call in which the ranks differ, and by what DDP itself printed."""
    case, job, findings = stall.ddp_unused, stall.job, list[Finding]()
    if case is not None:
        findings.append(
            _parts.confirmed(
                job,
                ID,
                worded(_ddp_text, case=case, is_dtk_run=job.is_dtk_run),
                0.95,
                evidence=_parts.lines(case.facts[:4]),
                ranks=case.ranks,
                victims=tuple(sorted(set(range(job.world())) - set(case.ranks))),
                where=tuple(place for end in case.endings for place in _parts.where(end.rank, line(end), end.what)),
            )
        )
    return decided(stall, READING, findings)


CAUSE = declared(__file__, explain, decide)
