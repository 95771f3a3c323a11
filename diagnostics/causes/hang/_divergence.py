"""The text of a divergence, shared by the five causes of ranks that disagree about collectives."""

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.divergence.explanation import Kind
from diagnostics.analysis.divergence.find import Divergence, at_split
from diagnostics.analysis.divergence.identity import agree
from diagnostics.analysis.divergence.loop_exit import conditions, passes_by
from diagnostics.analysis.histories.watchdog_lines import GroupLog
from diagnostics.analysis.source_text import most_telling
from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.job_state import SIZES, JobState
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.causes.declared import Texts
from diagnostics.causes.hang import _parts
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import CITED, PROBABLE, EvidenceItem, Finding, Remedy, Text, Where, confirmed
from diagnostics.contract.formatting import Phrase, filled
from diagnostics.evidence.calls import ROOTED, Call
from diagnostics.evidence.job.rank_endings import mismatch_facts
from diagnostics.evidence.model import shortened

TEXTS = Texts(__file__)
DETAIL, DUMPS = TEXTS.phrase("detail"), TEXTS.phrase("dumps")
BARRIER = "all_reduce", (1,)  # How NCCL's watchdog prints it.
EQUALLY_OFTEN = TEXTS.phrase("equally_often")
_BECAUSE: dict[str, str] = table_beside(__file__)["because"]


class Reading(Struct, frozen=True):
    """How a cause interprets a divergence: its kinds and texts. Each cause of this group defines one."""

    texts: Texts
    """Texts of the cause. `not_this` explains why the first divergence is none of these kinds if both sides issue the
    same operation, `not_this_either` (optional) if they differ: `{why}` is the decisive evidence, `{at}` the position,
    `{op}` the operation."""
    kinds: tuple[Kind, ...]
    """Kinds of divergence that this cause covers."""
    remedies: "Callable[[Disagreement], tuple[Remedy, ...]]"
    summary: "Callable[[Disagreement], str]" = lambda facts: facts.filled(facts.reading.texts, "summary")


def _at(divergence: Divergence) -> str:
    """Return a text such as `position 3 of group default_pg`; a position of 0 means unknown."""
    group = f" of group {divergence.key.label}" if divergence.key.label else ""
    return f"position {divergence.position:,}{group}" if divergence.position else str(TEXTS.phrase("lines"))


class Disagreement(Struct, frozen=True):
    """The facts of a finding: a divergence, interpreted as one of the kinds that explain it."""

    divergence: Divergence
    kind: Kind
    reading: Reading
    without_dump: tuple[int, ...] = ()
    """Members of the group that left no dump."""
    ddp: bool = False
    """Whether it is a dtk run under DDP."""
    payload_text: str = ""
    """What gloo printed when it ended a process whose message did not fit; empty in all other cases."""
    unrecorded: bool = False
    """Whether the ranks that made no call here may be in one that gloo does not record."""
    completed: tuple[int, ...] = ()
    """The ranks that completed a rooted call in which the others hang, although all made the same by their records."""
    pending: Call | None = None
    """The call that the minority waits in, if the others exited normally before."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of this kind: dropped, inserted, or the two that meet."""
        explanation = self.divergence.explanation
        if self.kind == explanation.kind:
            return explanation.calls
        return (self.divergence.minority if self.kind == "added" else self.divergence.majority,)

    @property
    def skip(self) -> str:
        """The line that may have let the rank with fewer rounds skip the call in one of them; empty = none is known."""
        divergence = self.divergence
        in_loop = {"fewer_iterations": divergence.majority, "more_iterations": divergence.minority}.get(self.kind)
        return passes_by(in_loop) if in_loop is not None else ""

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks that made the minority's call."""
        return self.divergence.vote.side_of(self.divergence.minority_rank)

    @property
    def others(self) -> tuple[int, ...]:
        """The ranks to compare with."""
        divergence, vote = self.divergence, self.divergence.vote
        if not divergence.tie and divergence.peers:
            return divergence.peers
        # Of more than two sides, only this one made the majority's call.
        return vote.side_of(divergence.majority_rank)

    def filled(self, texts: Texts, row: str, **more: object) -> str:
        """Fill the two sides, and `more`, into the row of the cause's `texts`.

        `{side}` stands for the ranks of the minority, `{rest}` for those they are compared with; `{minority_call}` and
        `{majority_call}` for their calls, with `_at` for the position as well, with `_place` for the line alone;
        `{first}` for the first call left out or added, `{at}` for the position.
        """
        minority, majority = self.divergence.minority, self.divergence.majority
        others = len(self.calls) - 1
        parts = {
            "side": self.minority,
            "rest": self.others,
            "minority_call": minority.cited(position=False),
            "minority_call_at": minority.cited(),
            "minority_call_place": minority.place,
            "majority_call": majority.cited(position=False),
            "majority_call_at": majority.cited() or TEXTS.phrase("start"),
            "majority_call_place": majority.place,
            "first": self.calls[0].cited() + (f" and {others} more" if others else ""),
            "at": _at(self.divergence),
        }
        text = texts.phrase(row).text
        return filled(text if self.others else text.replace("{rest}", "the others"), parts | more)

    def text(self, finding: Finding) -> Text:
        """Return the text of the finding."""
        divergence, vote = self.divergence, self.divergence.vote
        unclear, term = bool(divergence.explanation.alternatives), divergence.explanation.terms[0]
        summary = _in_the_loop_or_after(self) if unclear else self.reading.summary(self)
        third = tuple(set(divergence.culprits) - set(self.minority))
        if divergence.passed:
            last = "made_last" if divergence.minority.done else "passed"
            rows = last, "fewer" if divergence.explanation.deviation == "drop" else "another", "apart"
            call, group, others = divergence.minority.text, divergence.key.label, self.others
            return TEXTS(finding, rows, divergence=divergence, call=call, group=group, others=others, dumps=DUMPS)
        row = (
            "no_two"
            if divergence.tie and not divergence.culprits
            else "tie"
            if divergence.tie and not unclear
            else "third"
        )
        more = [row] if row != "third" or third else []
        more += ["no_dump"] if self.without_dump else []
        wires = (divergence.majority.wire[:2], divergence.minority.wire[:2])
        more += ["barrier"] if divergence.lines and BARRIER in wires else []
        # A log does not show the calls before, so those of one line may be of two rounds of its loop.
        is_single = term.name == "single position" or (term.name == "same line" and bool(divergence.lines))
        more += ["single"] if is_single else []
        more += ["gloo"] if self.payload_text else []
        if divergence.ended == "majority":
            more += [term.name] if term.name in TEXTS else []
            more += ["unrecorded"] if self.unrecorded else []
            more += ["waits_on"] if self.pending is not None else []
        shown = TEXTS(
            finding,
            ["completed" if self.completed else "differ", *more],
            counts=" against ".join(str(len(side)) for side in vote.sides), third=third, at=_at(self.divergence),
            silent=self.without_dump, printed=shortened(self.payload_text.strip(), 80),
            culprits=len(divergence.culprits), present=len(vote.present), side=self.minority, rest=self.others,
            completed=self.completed, count=term.count, extra=len(self.calls), pending=self.pending, dumps=DUMPS,
        )  # fmt: skip
        summary = f"{summary} {shown.summary}" if shown.summary else summary
        return replace(shown, summary=summary, remedies=tuple(dict.fromkeys(self.reading.remedies(self))))


def _in_the_loop_or_after(facts: Disagreement) -> str:
    divergence = facts.divergence
    sides = [(facts.minority, divergence.minority), (facts.others, divergence.majority)]
    (after, call), (within, other) = sides[::-1] if divergence.explanation.deviation == "drop" else sides
    calls = {"call_after": call.cited(position=False), "call_within": other.cited(position=False)}
    return facts.filled(TEXTS, "in_or_after", after=after, within=within, **calls)


def fix_call(call: Call, other: Call, *, added: bool = False) -> Remedy:
    """Return the fix for a call that only some ranks omit, or (`added`) only some make; `other` is the others'."""
    met = conditions(call, other)
    if met and (at := met[most_telling(met)]).line:
        return TEXTS.remedy("condition", call=call.text, place=call.place, at=f"{at.file}:{at.line}")
    return TEXTS.remedy("call_unconditionally" if added else "call_everywhere", call=call.text, place=call.place)


def kinds_of(divergence: Divergence) -> tuple[Kind, ...]:
    """Return the kinds that explain a divergence, the most likely first."""
    return (divergence.kind, *divergence.explanation.alternatives)


def decided(
    stall: Stall,
    reading: Reading,
    findings: list[Finding],
    missing: Phrase = _parts.RECORD,
    *,
    silent: bool = False,
    otherwise: _parts.Otherwise = lambda stall, waits: None,
) -> list[Finding]:
    """Return the most confident findings, including those for divergences, or why the cause is not confirmed."""

    def contradicted(stall: Stall, waits: bool) -> Finding | None:
        if answer := otherwise(stall, waits) or _contradicted(stall, reading):
            return answer
        survey = stall.job.survey
        kinds = set[str]().union(*(record.recorders for record in survey.ranks.values()))
        if waits and (lacking := [rank for rank, record in survey.ranks.items() if kinds - record.recorders]):
            return _parts.left_open(TEXTS.phrase("partly_recorded", who=lacking), DETAIL)
        return TEXTS.ruled_out("agree", count=survey.positions) if waits else None

    # Each divergence counts for each kind that may explain it, as two kinds may explain the same calls.
    pairs = ((each, kind) for each in (*map(at_split, stall.divergences), *stall.inferred) for kind in kinds_of(each))
    differ = [_finding(stall, divergence, kind, reading) for divergence, kind in pairs if kind in reading.kinds]
    findings = _parts.surest([*differ, *findings])
    findings = findings or ([_open(stall.timeouts)] if stall.timeouts else [])
    return findings or [_parts.unconfirmed(stall, missing, silent=silent, otherwise=contradicted)]


def _open(group: GroupLog) -> Finding:
    """Return why the timeouts of a group's ranks show nothing."""
    waits = sorted(group.waits.values(), key=lambda wait: (wait.seq, wait.rank))
    first, last = waits[0], waits[-1]
    row = "same_call" if all(agree(first.wire, wait.wire) for wait in waits) else "maybe_other_calls"
    row = "mixed" if group.mixed else "other_position" if first.seq != last.seq else row
    name = f"group {group.title}" if group.title else TEXTS.phrase("default_group")
    call = first.call(group).text
    return TEXTS.undecided(row, waiting=group.waits, first=first, last=last, call=call, group=name, dumps=DUMPS)


def _contradicted(stall: Stall, reading: Reading) -> Finding | None:
    """Rule the cause out if the first divergence contradicts it; otherwise return None."""
    if not stall.divergences or set(reading.kinds) & set(kinds_of(stall.divergences[0])):
        return None
    divergence = stall.divergences[0]
    minority, majority, at = divergence.minority, divergence.majority, _at(divergence)
    same = majority.wire.op == minority.wire.op
    term = divergence.explanation.terms[0]  # The decisive evidence.
    why = filled(_BECAUSE.get(term.name, _BECAUSE["any call"]), {"count": term.count})
    row = "not_this" if same or "not_this_either" not in reading.texts else "not_this_either"
    reason = reading.texts.phrase(row, why=why, at=at, op=majority.wire.op)
    calls = {"minority_call": minority.cited(position=False), "majority_call": majority.cited(position=False)}
    return TEXTS.ruled_out("contradicted", reason=reason, at=at, **calls)


def _finding(stall: Stall, divergence: Divergence, kind: Kind, reading: Reading) -> Finding:
    job, vote = stall.job, divergence.vote
    payload_text = next((fact.text for fact in divergence.lines if fact.kind == SIZES), "")
    victims = set(job.survey.members(vote.key)) | set(vote.present) | job.waits.reaching(vote.present)
    wire, at = divergence.minority.wire, Operation(divergence.key, divergence.position)
    is_same = wire == divergence.majority.wire and wire.op in ROOTED and wire.root is None
    completed = tuple(job.waits.complete.get(at, ())) if is_same else ()
    record = job.survey.ranks.get(divergence.minority_rank)
    pending = next(iter(record.pending()), None) if record is not None else None
    exited = divergence.ended == "majority" and all(rank in job.endings for rank in vote.sides[0])
    sides = (divergence.minority_rank, divergence.minority), (divergence.majority_rank, divergence.majority)
    details = {rank: _parts.says("call_is", call=call) for rank, call in sides}
    details |= {rank: _parts.says("completed", seq=divergence.position) for rank in completed[:1]}
    printed = divergence.kind in {"other_arguments", "other_operation"} or bool(payload_text)
    facts = Disagreement(
        divergence,
        kind,
        reading,
        tuple(rank for rank in vote.silent if rank not in job.survey.ranks),
        ddp=job.evidence.traits.gradients_in == "buckets",
        payload_text=payload_text,
        completed=completed,
        unrecorded=divergence.ended == "majority" and not exited and all(map(job.may_be_unrecorded, vote.sides[0])),
        # Another call than the first that the others never made.
        pending=pending if exited and pending is not None and pending.seq != divergence.minority.seq else None,
    )
    ended = divergence.culprits if divergence.ended == "minority" else vote.sides[0] if exited else ()
    finding = confirmed(
        facts=facts,
        confidence=min(divergence.confidence, PROBABLE if facts.skip else 1.0),
        ranks=divergence.culprits,
        tie=divergence.tie,
        victims=tuple(sorted(victims - set(divergence.culprits))),
        group=_parts.group(job.survey, vote.key) if divergence.groups_known else None,
        position=None if payload_text else divergence.position or None,
        step=divergence.minority.step or divergence.majority.step,
        where=_both_sides(facts),
        cost=job.cost(),
        basis="messages" if payload_text else _parts.basis(divergence.key),
        evidence=(
            *(job.endings[rank].evidence for rank in ended[:CITED] if rank in job.endings),
            *_parts.dumps(job.survey, details),
            *_parts.lines(() if payload_text else divergence.lines),
            *(() if divergence.position else _positions_without_calls(job, divergence)),
            *_parts.lines(mismatch_facts(job.evidence)[:2] if printed else []),
        ),
    )
    return _parts.assuming(job, finding) if divergence in stall.inferred else finding


def _positions_without_calls(job: JobState, divergence: Divergence) -> Iterator[EvidenceItem]:
    """Yield evidence of the position of ranks without recorded calls: a stack, or the error of a timeout."""
    stacks = job.latest_stacks()
    sides = {divergence.minority_rank: divergence.minority, divergence.majority_rank: divergence.majority}
    for rank, call in sides.items():
        text = _parts.says("of_rank", rank=rank, what=call.cited(position=False))
        if rank in stacks:
            yield EvidenceItem("stacks", stacks[rank].file, text)
        elif rank in job.endings:
            yield replace(job.endings[rank].record, detail=text)


def _both_sides(facts: Disagreement) -> tuple[Where, ...]:
    """Return the source lines of both sides, the minority's first."""
    divergence = facts.divergence
    minority, majority = divergence.minority, divergence.majority
    if facts.kind not in {"left_out", "fewer_iterations", "gradients_not_ready"}:
        is_last = divergence.ended == "majority" and majority.seq < minority.seq
        last = _parts.says("last_called", what=majority.text) if is_last else None
        first = _parts.where(divergence.minority_rank, minority)
        return (*first, *_parts.where(divergence.majority_rank, majority, last))
    there = _parts.where(divergence.majority_rank, majority, _parts.says("waits_in", what=majority.text))
    does = TEXTS.phrase("ends_after" if divergence.ended == "minority" else "already_in", call=minority.text)
    there = there or _parts.where(divergence.majority_rank, facts.calls[0])
    return (*_parts.where(divergence.minority_rank, minority, does), *there)
