"""The two sides of a divergence in words: what the five causes of ranks that disagree about collectives share."""

from collections.abc import Callable

from msgspec import Struct

from diagnostics.analysis.divergence.evidence_terms import Term
from diagnostics.analysis.divergence.explanation import Kind
from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.stall.explain import Stall
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._parts import RECORD
from diagnostics.causes.hang._unconfirmed import Otherwise, unconfirmed
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, Where, ruled_out
from diagnostics.contract.formatting import counted, filled, verb
from diagnostics.contract.strategy_traits import strategy_traits
from diagnostics.evidence.calls import Call
from diagnostics.evidence.model import shortened
from diagnostics.evidence.rank_endings import mismatch_facts

EQUALLY_OFTEN = "each rank must run the loop equally often"
_BECAUSE: dict[str, str] = table_beside(__file__)["because"]


class Reading(Struct, frozen=True):
    """How one cause reads a divergence: what it is about, and its own words. Each cause of this family defines one."""

    cause: str
    kinds: tuple[Kind, ...]
    """Kinds of divergence that are this cause."""
    summary: "Callable[[Disagreement], str]"
    remedies: "Callable[[Disagreement], tuple[Remedy, ...]]"
    not_this: str
    """Why the first divergence is none of these kinds, where both sides issue the same operation: `{why}` stands for
    the decisive evidence, `{at}` for the position, `{op}` for the operation."""
    not_this_either: str = ""
    """The same where the operations differ; empty = as above."""


class Disagreement(Struct, frozen=True):
    """The facts of a finding: a divergence, seen as one of the kinds that explain it."""

    divergence: Divergence
    kind: Kind
    reading: Reading
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
            return "the time of the observations"
        return f"position {self.divergence.position}" + (f" of group {group}" if group else "")

    def filled(self, text: str, **more: object) -> str:
        """Fill in the two sides.

        Args:
            text: `{side}` stands for the ranks of the minority, `{rest}` for those they are compared with; `{mine}` and
                `{theirs}` for their calls, with `_at` for the position as well, with `_place` for the line alone;
                `{first}` for the first call left out or added, `{at}` for the position.
            more: by name, what else stands in the text.
        """
        minority, majority = self.divergence.minority, self.divergence.majority
        others = len(self.calls) - 1
        parts = {
            "side": self.minority,
            "rest": self.others,
            "mine": minority.cited(position=False),
            "mine_at": minority.cited(),
            "mine_place": minority.place,
            "theirs": majority.cited(position=False),
            "theirs_at": majority.cited(),
            "theirs_place": majority.place,
            "first": self.calls[0].cited() + (f" and {others} more" if others else ""),
            "at": self.at,
        }
        return filled(text if self.others else text.replace("{rest}", "the others"), parts | more)

    def text(self, finding: Finding) -> Text:
        """Put the finding into words."""
        divergence, vote = self.divergence, self.divergence.vote
        unclear = bool(divergence.explanation.alternatives)
        summary = _in_the_loop_or_behind(self) if unclear else self.reading.summary(self)
        if divergence.tie and not divergence.culprits:
            summary += " No two ranks agree, so it is not known which of them is wrong."
        elif divergence.tie and not unclear:
            counts = " against ".join(str(len(side)) for side in vote.sides)
            summary += f" It is a tie ({counts}): either side may be the wrong one."
        elif third := set(divergence.culprits) - set(self.minority):
            summary += filled(" {third:^} {third:differs|differ} from both.", {"third": third})
        if self.without_dump:
            summary += filled(" {ranks:^} left no dump.", {"ranks": self.without_dump})
        if divergence.explanation.terms[0].name == "single position":
            summary += " The record does not show whether this call is wrong, or an earlier one was left out or added."
        if self.payload_text:
            text = shortened(self.payload_text.strip(), 80)
            summary += f" Gloo ended a process because their sizes did not fit: {text}."
        return Text(
            summary=summary,
            measured=f"{len(divergence.culprits)} of {len(vote.present)} ranks differ at {self.at}",
            remedies=tuple(dict.fromkeys(self.reading.remedies(self))),
        )


def _in_the_loop_or_behind(facts: Disagreement) -> str:
    """Say what happened where the line may stand in the loop or behind it."""
    divergence = facts.divergence
    sides = [(facts.minority, divergence.minority), (facts.others, divergence.majority)]
    if divergence.explanation.deviation == "drop":
        sides.reverse()
    (behind, call_behind), (within, call_within) = sides
    return facts.filled(
        "{behind:^} {behind:is|are} in {call_behind} while {within} {within:continues|continue} with the loop: "
        "{call_within}, at {at}. Either that line is behind the loop, so that {behind} ran fewer iterations, or a "
        "condition within the loop calls it on some ranks only: the calls do not show which.",
        behind=behind,
        within=within,
        call_behind=call_behind.cited(position=False),
        call_within=call_within.cited(position=False),
    )


def call_everywhere(call: str, place: str) -> Remedy:
    """Return how to fix a call that only some ranks leave out."""
    change = f"call {call} at {place} on all ranks of its group, or on none"
    return Remedy("code", change, "a collective inside a condition that differs by rank leaves the others waiting")


def call_unconditionally(call: str, place: str) -> Remedy:
    """Return how to fix a call that only some ranks make."""
    change = f"remove the condition around {place}, so that all ranks call {call} or none"
    return Remedy(
        "code",
        change,
        "a collective that only some ranks call is matched with another call of their peers, or with none",
    )


def run_equally_often(place: str) -> Remedy:
    """Return how to fix a loop that some ranks leave early."""
    change = "let all ranks agree on the number of steps (all_reduce a stop flag, drop uneven batches, or DDP's join)"
    return Remedy("code", f"{change} around {place}", EQUALLY_OFTEN)


def disagreements(stall: Stall, reading: Reading) -> list[Finding]:
    """Return a finding for each divergence that may be this cause. Where two kinds explain the same calls, both may."""
    divergences = [(divergence, "") for divergence in stall.divergences]
    if stall.sizes and stall.sizes.divergence:
        divergences.append((stall.sizes.divergence, stall.sizes.facts[0].text))
    return [
        _finding(stall, divergence, kind, reading, payload_text)
        for divergence, payload_text in divergences
        for kind in kinds_of(divergence)
        if kind in reading.kinds
    ]


def kinds_of(divergence: Divergence) -> tuple[Kind, ...]:
    """Return the kinds that explain a divergence, the likeliest first."""
    return (divergence.kind, *divergence.explanation.alternatives)


def decided(
    stall: Stall,
    reading: Reading,
    findings: list[Finding],
    missing: str = RECORD,
    *,
    silent: bool = False,
    otherwise: Otherwise = lambda stall, waits: None,
) -> list[Finding]:
    """Return the surest of the divergences and of what else was found, or why it is not this cause.

    Args:
        stall: what is known.
        reading: of the cause.
        findings: beside the divergences of the ranks' calls.
        missing: what would decide it.
        silent: as `unconfirmed` takes it.
        otherwise: as `unconfirmed` takes it, before what the first divergence contradicts.
    """

    def contradicted(stall: Stall, waits: bool) -> Finding | None:
        if answer := otherwise(stall, waits) or _contradicted(stall, reading):
            return answer
        summary = "All ranks agree at every position that more than one of them reached."
        count = stall.job.survey.positions
        return ruled_out(reading.cause, summary, "0 of {count:,} calls differ", count=count) if waits else None

    findings = _parts.surest([*disagreements(stall, reading), *findings])
    return findings or [unconfirmed(stall, reading.cause, missing, silent=silent, otherwise=contradicted)]


def _contradicted(stall: Stall, reading: Reading) -> Finding | None:
    """Rule out what the first divergence contradicts."""
    if not stall.divergences or set(reading.kinds) & set(kinds_of(stall.divergences[0])):
        return None
    divergence = stall.divergences[0]
    minority, majority = divergence.minority, divergence.majority
    at = f"position {minority.seq} of group {divergence.key.label}" if minority.seq else "the lines at which they are"
    same = majority.wire.op == minority.wire.op
    reason = reading.not_this if same else reading.not_this_either or reading.not_this
    return ruled_out(
        reading.cause,
        "{reason}",
        "{meet}",
        reason=reason.format(why=_because(divergence.explanation.terms[0]), at=at, op=majority.wire.op),
        meet=f"{at}: {minority.cited(position=False)} meets {majority.cited(position=False)}",
    )


def _because(term: Term) -> str:
    """Return one clause about the decisive evidence."""
    text = _BECAUSE.get(term.name, _BECAUSE["any call"])
    agree = verb(range(term.count), "agrees", "agree")
    return text.format(count=term.count, calls=counted(term.count, "call"), agree=agree)


def _finding(stall: Stall, divergence: Divergence, kind: Kind, reading: Reading, payload_text: str) -> Finding:
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
        reading,
        tuple(rank for rank in vote.silent if rank not in job.survey.ranks),
        ddp=run is not None and strategy_traits(run.manifest, run.config).gradients_in == "buckets",
        payload_text=payload_text,
    )
    return Finding(
        cause=reading.cause,
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
                if not divergence.position and rank in stacks
            ),
            *_parts.lines(mismatch_facts(job.evidence)[:2] if printed else []),
        ),
    )


def _both_sides(facts: Disagreement) -> tuple[Where, ...]:
    """Return the lines of both sides, the minority's first."""
    divergence = facts.divergence
    minority, majority = divergence.minority, divergence.majority
    if facts.kind not in {"left_out", "fewer_iterations", "gradients_not_ready"}:
        return (*_parts.where(divergence.minority_rank, minority), *_parts.where(divergence.majority_rank, majority))
    there = _parts.where(divergence.majority_rank, majority, f"waits in {majority.text}")
    does = f"{'ends after' if divergence.ended else 'is already in'} {minority.text}"
    return (
        *_parts.where(divergence.minority_rank, minority, does),
        *(there or _parts.where(divergence.majority_rank, facts.calls[0])),
    )
