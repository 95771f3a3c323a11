"""What the five causes of ranks that disagree about the sequence of collectives share: facts and sentences."""

from dataclasses import dataclass

from diagnostics.analysis.divergence.evidence_terms import Position, Support, Term
from diagnostics.analysis.divergence.explanation import Kind
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.identity import differing_parts
from diagnostics.analysis.stall.explain import Stall
from diagnostics.causes.hang import _parts
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
        _finding(stall, each, kind) for each in stall.divergences for kind in _kinds(each) if CAUSES[kind] == cause
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


_BECAUSE: dict[Support | Position, str] = {
    "same line": "both sides are in the same line of code",
    "later calls agree": "with this one difference the next {calls} of both sides {agree}",
    "round already begun": "the rank left the backward pass without this bucket",
    "backward begun": "the rank is in the same step and left the backward pass without this bucket",
    "same calls again in the step": "the rank makes the last {calls} again within the step",
    "later in the round": "the rank's next call is the one {count} later in the loop",
    "round not finished by the peers": "the peers are {calls} further in the loop",
    "source branches": "in the program's text the two lines are an `if` and its `else`",
    "past that line": "the rank is already past that line",
    "peers past that line": "the peers are already past that line",
    "branches of a function": "the two calls are two branches of the same function",
    "neither came to the other": "no side is known to come to the other side's call",
    "same operation": "both sides issue the same operation",
    "other operation": "the two sides issue different operations",
    "halves": "each half of the ranks makes a call of its own",
    "ended in order": "the ranks ended in order afterwards",
    "source behind": "the program's text has the call behind the loop",
    "source leaves": "the program's text leaves the loop from there",
    "source within": "the program's text has the call within the loop",
    "any call": "the call is not one that the loop makes in every round",
    "whole programs": "the whole programs of all ranks show it",
    "line unknown": "the line of one of the calls is not recorded",
    "single position": "no calls before these are recorded",
    "peers came later": "the peers came to that call after it",
}


def _because(term: Term) -> str:
    """Return one clause about the decisive evidence."""
    text = _BECAUSE.get(term.name, _BECAUSE["any call"])
    agree = verb(range(term.count), "agrees", "agree")
    return text.format(count=term.count, calls=counted(term.count, "call"), agree=agree)


def _first(facts: Disagreement) -> str:
    """Return the first call that was left out or added, and how many more there are."""
    rest = len(facts.calls) - 1
    return facts.calls[0].cited() + (f" and {rest} more" if rest else "")


def _sentence(facts: Disagreement) -> str:
    """Say what happened, to whom and where."""
    divergence, side, others = facts.divergence, facts.minority, facts.others
    who, rest = sentence(ranks_spoken(side)), ranks_spoken(others) if others else "the others"
    mine, theirs = divergence.minority.cited(position=False), divergence.majority.cited(position=False)
    is_, has = verb(others, "is", "are"), verb(others, "has", "have")
    if divergence.payload is not None:
        sent, expected = divergence.payload
        sender, receiver = divergence.minority_rank, divergence.majority_rank
        return (
            f"Rank {sender} sends {sent} bytes to rank {receiver} in {divergence.minority.cited()}; rank {receiver} "
            f"expects {expected} bytes of it in {divergence.majority.cited()}."
        )
    if divergence.whole and facts.kind in {"fewer_iterations", "more_iterations"}:
        times = "fewer" if facts.kind == "fewer_iterations" else "more"
        meets = f"{mine} meets {theirs}"
        if divergence.ended:
            meets = f"{mine} is the last call on one side, the other goes on to {theirs}"
        run, usual = divergence.iterations or (0, 0)
        counts = f" ({counted(run, 'iteration')} instead of {usual})" if run != usual else ""
        return f"{who} {verb(side, 'goes', 'go')} through the loop {times} times than {rest}{counts}: {meets}."
    if facts.kind == "other_arguments":
        hidden = ""
        if divergence.minority.text == divergence.majority.text:
            parts = differing_parts(divergence.minority.wire, divergence.majority.wire)
            hidden = f" What differs is the {' and the '.join(parts)}." if parts else ""
        return f"{who} {verb(side, 'calls', 'call')} {mine} where {rest} {has} {theirs}, at {facts.at}.{hidden}"
    if facts.kind == "other_operation":
        calls = verb(others, "calls", "call")
        return f"{who} {verb(side, 'calls', 'call')} {mine} where {rest} {calls} {theirs}, at {facts.at}."
    if facts.kind == "left_out":
        return (
            f"{who} left out {_first(facts)} that {rest} {verb(others, 'waits', 'wait')} in; "
            f"{verb(side, 'it is', 'they are')} already in {divergence.minority.cited(position=False)}."
        )
    if facts.kind == "added":
        only = f"Only {ranks_spoken(side)} {verb(side, 'calls', 'call')}"
        return f"{only} {_first(facts)}; {rest} {is_} in {theirs}."
    if facts.kind == "fewer_iterations":
        return f"{who} left the loop that {rest} {is_} still in: {mine} meets {theirs} at {facts.at}."
    if facts.kind == "more_iterations":
        return f"{who} {verb(side, 'runs', 'run')} on with {mine} where {rest} {is_} in {theirs}, at {facts.at}."
    return (
        f"{who} left the backward pass without {divergence.majority.cited()}, which {rest} "
        f"{verb(others, 'waits', 'wait')} in: some of its parameters got no gradient in this step."
    )


def _either(facts: Disagreement) -> str:
    """Say what happened where the line may stand in the loop or behind it."""
    divergence, side, others = facts.divergence, facts.minority, facts.others
    behind, within = divergence.minority, divergence.majority
    if divergence.explanation.deviation == "drop":
        side, others, behind, within = others, side, within, behind
    return (
        f"{sentence(ranks_spoken(side))} {verb(side, 'is', 'are')} in {behind.cited(position=False)} while "
        f"{ranks_spoken(others)} {verb(others, 'goes', 'go')} on with the loop: {within.cited(position=False)}, at "
        f"{facts.at}. Either that line stands behind the loop, so that {ranks_spoken(side)} ran fewer iterations, or a "
        "condition within the loop calls it on some ranks only: the calls do not tell which."
    )


def _remedies(facts: Disagreement, kind: Kind) -> tuple[Remedy, ...]:
    divergence, minority, majority = facts.divergence, facts.divergence.minority, facts.divergence.majority
    match kind:
        case "other_arguments" if divergence.payload is not None:
            change = (
                f"let what rank {divergence.minority_rank} sends at {minority.place} be as long as what rank "
                f"{divergence.majority_rank} expects at {majority.place}"
            )
            why = "both ends of a transfer need the same number of bytes: exchange the sizes before the data"
        case "other_arguments":
            change = f"make {minority.place} use the same shape, dtype, root and ReduceOp on every rank"
            why = "a collective needs equal arguments on all ranks of its group"
        case "other_operation":
            meet = f"{minority.text} and {majority.text} meet at position {minority.seq} and"
            if minority.site is not None and majority.site is not None:
                meet = f"{minority.place} and {majority.place}"
            change = f"let all ranks take the same branch: {meet} must be the same collective"
            why = "collectives are matched by their order in the group, not by name"
        case "left_out":
            change = f"call {facts.calls[0].text} at {facts.calls[0].place} on all ranks, or on none"
            why = "a collective inside a condition that differs by rank leaves the others waiting"
        case "added":
            added = facts.calls[0] if facts.kind == "added" else minority
            change = f"take the condition off {added.place}, so that all ranks call {added.text} or none"
            why = "a collective that only some ranks call meets another one of their peers"
        case "fewer_iterations" | "more_iterations":
            change = (
                "let all ranks agree on the number of steps (all_reduce a stop flag, drop uneven batches, or DDP's "
                f"join) around {majority.place}"
            )
            why = "each rank must run the loop equally often"
        case "gradients_not_ready" if majority.wire.op != "all_reduce":
            change = f"let every parameter take part in the loss (waits at {majority.place})"
            why = "gradients are reduced only when they are ready"
        case "gradients_not_ready":
            return unused_parameters(f" (waits at {majority.place})", is_dtk_run=facts.ddp)
    return (Remedy("code", change, why),)


def unused_parameters(at: str, *, is_dtk_run: bool) -> tuple[Remedy, ...]:
    """Return how to fix parameters without a gradient under DDP; `at` is appended to the change of the code."""
    change = f"let every parameter take part in the loss, or set find_unused_parameters=True in DDP{at}"
    code = Remedy("code", change, "DDP reduces a bucket only when all its gradients are ready")
    why = "DDP then marks parameters without a gradient as ready"
    return (Remedy("override", "strategy.find_unused_parameters=true", why), code) if is_dtk_run else (code,)
