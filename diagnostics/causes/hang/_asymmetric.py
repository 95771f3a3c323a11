"""What the five causes of ranks that disagree about the sequence of collectives share: facts and sentences."""

from dataclasses import dataclass

from diagnostics.analysis.divergence.evidence_terms import Term
from diagnostics.analysis.divergence.explanation import Kind
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.identity import differing_parts
from diagnostics.analysis.stall.explain import Stall
from diagnostics.causes.hang import _parts
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, Where
from diagnostics.contract.formatting import counted, ranks_spoken, sentence, verb
from diagnostics.contract.strategy_traits import strategy_traits
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import shortened
from diagnostics.evidence.rank_endings import mismatch_facts

CAUSES: dict[Kind, str] = {
    "other_operation": "hang.collective_mismatch",
    "other_arguments": "hang.signature_mismatch",
    "left_out": "hang.conditional_collective",
    "added": "hang.conditional_collective",
    "fewer_iterations": "hang.uneven_iterations",
    "more_iterations": "hang.uneven_iterations",
    "gradients_not_ready": "hang.unused_parameters",
}
_WORDS = table_beside(__file__)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The facts of a finding: a divergence, seen as one of the kinds that explain it."""

    divergence: Divergence
    kind: Kind
    without_dump: tuple[int, ...] = ()
    """Members of the group that left no dump."""
    ddp: bool = False
    """Whether it is a run of dtk under DDP."""
    payload_text: str = ""
    """What gloo printed when it ended a process whose message did not fit; empty in all other cases."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of this kind: dropped, inserted, or the two that meet."""
        explanation = self.divergence.explanation
        if self.kind == explanation.kind:
            return explanation.calls
        return (self.divergence.minority if self.kind == "added" else self.divergence.majority,)

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks that made the minority's call."""
        return self.divergence.vote.side_of(self.divergence.minority_rank)

    @property
    def others(self) -> tuple[int, ...]:
        """The ranks to compare with."""
        if not self.divergence.tie and self.divergence.peers:
            return self.divergence.peers
        return tuple(rank for rank in self.divergence.vote.present if rank not in self.minority)

    @property
    def at(self) -> str:
        """`position 3 of group default_pg`; a position of 0 is not known."""
        group = self.divergence.key.label
        if not self.divergence.position:
            return "the time of the looks"
        return f"position {self.divergence.position}" + (f" of group {group}" if group else "")

    def text(self, finding: Finding) -> Text:
        """Put the finding into words."""
        divergence, vote = self.divergence, self.divergence.vote
        unclear = bool(divergence.explanation.alternatives)
        summary = _either(self) if unclear else _sentence(self)
        if divergence.tie and not divergence.culprits:
            summary += " No two ranks agree, so none of them is the odd one out."
        elif divergence.tie and not unclear:
            counts = " against ".join(str(len(side)) for side in vote.sides)
            summary += f" It is a tie ({counts}): either side may be the wrong one."
        elif third := set(divergence.culprits) - set(self.minority):
            summary += f" {sentence(ranks_spoken(third))} {verb(third, 'differs', 'differ')} from both."
        if self.without_dump:
            summary += f" {sentence(ranks_spoken(self.without_dump))} left no dump."
        if divergence.explanation.terms[0].name == "single position":
            summary += " Whether this call is wrong or one was left out or added before it is not recorded."
        if self.payload_text:
            text = shortened(self.payload_text.strip(), 80)
            summary += f" Gloo ended a process because their sizes did not fit: {text}."
        kinds = dict.fromkeys((self.kind, *_kinds(divergence)))
        return Text(
            summary=summary,
            measured=f"{len(divergence.culprits)} of {len(vote.present)} ranks differ at {self.at}",
            remedies=tuple(dict.fromkeys(remedy for kind in kinds for remedy in _remedies(self, kind))),
        )


def disagreements(stall: Stall, cause: str) -> list[Finding]:
    """Return a finding for each divergence that may be this cause. Where two kinds explain the same calls, both may."""
    met = stall.sizes.divergence if stall.sizes else None
    findings = [
        _finding(stall, divergence, kind)
        for divergence in stall.divergences
        for kind in _kinds(divergence)
        if CAUSES[kind] == cause
    ]
    if stall.sizes and met:
        text = stall.sizes.facts[0].text
        findings += [_finding(stall, met, kind, text) for kind in _kinds(met) if CAUSES[kind] == cause]
    return findings


def _kinds(divergence: Divergence) -> tuple[Kind, ...]:
    return (divergence.kind, *divergence.explanation.alternatives)


def _finding(stall: Stall, divergence: Divergence, kind: Kind, payload_text: str = "") -> Finding:
    job, vote, run = stall.job, divergence.vote, stall.job.evidence.run
    stacks = job.latest_stacks()
    victims = set(job.survey.members(vote.key)) | set(vote.present) | job.waits.reaching(vote.present)
    details = {
        divergence.minority_rank: f"#{divergence.minority.seq} is {divergence.minority.text}",
        divergence.majority_rank: f"#{divergence.majority.seq} is {divergence.majority.text}",
    }
    printed = divergence.kind in {"other_arguments", "other_operation"} or bool(payload_text)
    facts = Disagreement(
        divergence,
        kind,
        tuple(rank for rank in vote.silent if rank not in job.survey.ranks),
        ddp=run is not None and strategy_traits(run.manifest, run.config).gradients_in == "buckets",
        payload_text=payload_text,
    )
    return Finding(
        cause=CAUSES[kind],
        status="confirmed",
        facts=facts,
        confidence=divergence.confidence,
        ranks=divergence.culprits,
        victims=tuple(sorted(victims - set(divergence.culprits))),
        group=_parts.group(job.survey, vote.key),
        position=None if payload_text else divergence.position or None,
        step=divergence.minority.step or divergence.majority.step,
        where=_both_sides(facts),
        cost=job.cost(),
        evidence=(
            *_parts.dumps(job.survey, details),
            *(
                EvidenceItem("stacks", stacks[rank].file, text)
                for rank, text in details.items()
                if not divergence.position
            ),
            *_parts.lines(mismatch_facts(job.evidence)[:2] if printed else []),
        ),
    )


def _both_sides(facts: Disagreement) -> tuple[Where, ...]:
    """Return the lines of both sides, the minority's first."""
    divergence = facts.divergence
    minority, majority = divergence.minority, divergence.majority
    if facts.kind not in {"left_out", "fewer_iterations", "gradients_not_ready"}:
        return (
            *_parts.where(divergence.minority_rank, minority),
            *_parts.where(divergence.majority_rank, majority),
        )
    there = _parts.where(divergence.majority_rank, majority, f"waits in {majority.text}")
    does = f"{'ends after' if divergence.ended else 'is already in'} {minority.text}"
    return (
        *_parts.where(divergence.minority_rank, minority, does),
        *(there or _parts.where(divergence.majority_rank, facts.calls[0])),
    )


def ruled_out(stall: Stall) -> dict[str, tuple[str, str]]:
    """Return why the first divergence is none of the other kinds, and what was measured, by cause."""
    if not stall.divergences:
        return {}
    divergence = stall.divergences[0]
    majority, minority = divergence.majority, divergence.minority
    at = f"position {minority.seq} of group {divergence.key.label}" if minority.seq else "the lines where they stand"
    why = _because(divergence.explanation.terms[0])
    same = majority.wire.op == minority.wire.op
    reasons = {
        "hang.collective_mismatch": f"Both sides issue {majority.wire.op} at {at}."
        if same
        else f"The operations at {at} differ only because of what was confirmed: {why}.",
        "hang.signature_mismatch": f"At {at} it is another call, not other arguments of the same call: {why}."
        if same
        else f"The ranks issue different operations at {at}.",
        "hang.conditional_collective": f"No call was left out or added: {why}.",
        "hang.uneven_iterations": f"No rank left the loop or ran on with it: {why}.",
        "hang.unused_parameters": f"No rank left the backward pass early: {why}.",
    }
    confirmed = {CAUSES[kind] for kind in _kinds(divergence)}
    meet = f"{at}: {minority.cited(position=False)} meets {majority.cited(position=False)}"
    return {cause: (reason, meet) for cause, reason in reasons.items() if cause not in confirmed}


def remedy(name: str, **parts: object) -> Remedy:
    """Return a remedy of the table `_asymmetric.yaml`, with its parts filled in."""
    change, why = _WORDS["remedies"][name]
    return Remedy("code", change.format_map(parts), why)


def unused_parameters(at: str, *, is_dtk_run: bool) -> tuple[Remedy, ...]:
    """Return how to fix parameters without a gradient under DDP; `at` is appended to the change of the code."""
    change = f"let every parameter take part in the loss, or set find_unused_parameters=True in DDP{at}"
    code = Remedy("code", change, "DDP reduces a bucket only when all its gradients are ready")
    why = "DDP then marks parameters without a gradient as ready"
    return (Remedy("override", "strategy.find_unused_parameters=true", why), code) if is_dtk_run else (code,)


def _because(term: Term) -> str:
    """Return one clause about the decisive evidence."""
    text: str = _WORDS["because"].get(term.name, _WORDS["because"]["any call"])
    agree = verb(range(term.count), "agrees", "agree")
    return text.format(count=term.count, calls=counted(term.count, "call"), agree=agree)


def _filling(facts: Disagreement) -> dict[str, object]:
    """Return what the texts of the table are made of."""
    divergence, side, others = facts.divergence, facts.minority, facts.others
    minority, majority, more = divergence.minority, divergence.majority, len(facts.calls) - 1
    return {
        "who": sentence(ranks_spoken(side)),
        "side": ranks_spoken(side),
        "rest": ranks_spoken(others) if others else "the others",
        "mine": minority.cited(position=False),
        "mine_at": minority.cited(),
        "mine_place": minority.place,
        "theirs": majority.cited(position=False),
        "theirs_at": majority.cited(),
        "theirs_place": majority.place,
        "sender": divergence.minority_rank,
        "receiver": divergence.majority_rank,
        "first": facts.calls[0].cited() + (f" and {more} more" if more else ""),
        "at": facts.at,
        "calls": verb(side, "calls", "call"),
        "goes": verb(side, "goes", "go"),
        "runs": verb(side, "runs", "run"),
        "it_is": verb(side, "it is", "they are"),
        "rest_is": verb(others, "is", "are"),
        "rest_has": verb(others, "has", "have"),
        "rest_waits": verb(others, "waits", "wait"),
        "rest_calls": verb(others, "calls", "call"),
    }


def _sentence(facts: Disagreement) -> str:
    """Say what happened, to whom and where."""
    divergence, parts, name = facts.divergence, _filling(facts), str(facts.kind)
    minority, majority = divergence.minority, divergence.majority
    if divergence.payload is not None:
        name = "payload"
        parts["sent"], parts["expected"] = divergence.payload
    elif divergence.whole and facts.kind in {"fewer_iterations", "more_iterations"}:
        name = "whole_loop"
        parts["times"] = facts.kind.partition("_")[0]
        parts["meets"] = f"{parts['mine']} meets {parts['theirs']}"
        if divergence.ended:
            parts["meets"] = f"{parts['mine']} is the last call on one side, the other goes on to {parts['theirs']}"
        run, expected = divergence.iterations or (0, 0)
        parts["counts"] = f" ({counted(run, 'iteration')} instead of {expected})" if run != expected else ""
    elif facts.kind == "other_arguments":
        differing = differing_parts(minority.wire, majority.wire) if minority.text == majority.text else ()
        parts["hidden"] = f" What differs is the {' and the '.join(differing)}." if differing else ""
    text: str = _WORDS["summaries"][name]
    return text.format_map(parts)


def _either(facts: Disagreement) -> str:
    """Say what happened where the line may stand in the loop or behind it."""
    divergence = facts.divergence
    sides = [(facts.minority, divergence.minority), (facts.others, divergence.majority)]
    if divergence.explanation.deviation == "drop":
        sides.reverse()
    (behind_ranks, behind), (within_ranks, within) = sides
    text: str = _WORDS["summaries"]["either"]
    return text.format(
        behind_who=sentence(ranks_spoken(behind_ranks)),
        behind_side=ranks_spoken(behind_ranks),
        behind_is=verb(behind_ranks, "is", "are"),
        behind=behind.cited(position=False),
        within_side=ranks_spoken(within_ranks),
        within_goes=verb(within_ranks, "goes", "go"),
        within=within.cited(position=False),
        at=facts.at,
    )


def _remedies(facts: Disagreement, kind: Kind) -> tuple[Remedy, ...]:
    divergence, minority, majority = facts.divergence, facts.divergence.minority, facts.divergence.majority
    if kind == "gradients_not_ready" and majority.wire.op == "all_reduce":
        return unused_parameters(f" (waits at {majority.place})", is_dtk_run=facts.ddp)
    call = minority if kind == "added" and facts.kind != "added" else facts.calls[0]
    meet = f"{minority.text} and {majority.text} meet at position {minority.seq} and"
    if minority.site is not None and majority.site is not None:
        meet = f"{minority.place} and {majority.place}"
    name = "payload" if kind == "other_arguments" and divergence.payload is not None else kind
    return (remedy(name, **_filling(facts), call=call.text, place=call.place, meet=meet),)
