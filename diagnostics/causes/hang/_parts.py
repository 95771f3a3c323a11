"""Shared parts of findings about hangs: lines, groups, evidence, what hosts do, and why a cause is not confirmed."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.printed import LOGGED, RECORDER as PRINTED
from diagnostics.analysis.stall.endings import LastSeen
from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.stack_evidence import KEY as STACKS, InCollective
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.causes.declared import Texts
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import ASSUMED, CITED, Basis, EvidenceItem, Facts, Finding, Group, Text, Where
from diagnostics.contract.formatting import Phrase, file_name, region_text
from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.model import Evidence, Frame, LogFact
from diagnostics.evidence.readers.start import watched
from diagnostics.evidence.stacks.activity import Activity, Doing

TEXTS = Texts(__file__)
says = TEXTS.phrase
"""Returns what a rank does, what its record shows, or why a cause is not confirmed, from a row of the YAML file."""
RECORD, _WATCHED, _RUN = map(says, ("record", "watched", "run"))  # How to record the calls of all ranks.
_FIXES: dict[Doing | Literal["other"], str] = table_beside(__file__)["fixes"]
UNRECORDED = says("send_and_recv")
Otherwise = Callable[[Stall, bool], Finding | None]
"""Decides for a single cause, given a stall and whether ranks wait; returns None to apply the general rules."""


def recording(evidence: Evidence, how: Phrase = RECORD) -> Phrase:
    """Return how to record what is missing; of ranks that dtk ran or watched, where their records are."""
    return _RUN if evidence.run is not None else _WATCHED if watched(evidence) else how


def where(rank: int | None, place: Call | Frame | None, does: str | Phrase | None = None) -> tuple[Where, ...]:
    """Return the source line of a call or a frame as the `where` of a finding; empty if no stack was recorded."""
    site = place.site if isinstance(place, Call) else place
    if site is None:
        return ()
    does = does or (place.text if isinstance(place, Call) else "")
    return (Where(rank, site.file, site.line, site.function, does),)


def places(rows: Iterable[tuple[int | None, Call | Frame | None, str | Phrase | None]]) -> tuple[Where, ...]:
    """Return several lines as `where` does."""
    return tuple(place for row in rows for place in where(*row))


def basis(key: GroupKey) -> Basis:
    """Return what a finding about calls rests on: no recorder has counted the calls that only stacks show."""
    return "places" if key == STACKS else "records"


def group(survey: Survey, key: GroupKey) -> Group:
    """Return the group in the form used by findings."""
    return Group(name=key.name, ranks=survey.members(key), desc="" if key.desc == "undefined" else key.desc)


def dumps(survey: Survey, details: Mapping[int, str | Phrase]) -> tuple[EvidenceItem, ...]:
    """Return the dumps of these ranks, with what each dump shows."""
    records = [(rank, survey.ranks.get(rank)) for rank in sorted(details)[:CITED]]
    return tuple(
        EvidenceItem(kind, file, says(row, rank=rank, what=details[rank]))
        for rank, record in records
        if record
        for kind in ["log" if record.recorders <= {PRINTED, LOGGED} else "flight"]
        for row in ["by_message" if record.recorders == {PRINTED} else "of_rank"]
        for file in record.files[:1]
    )


def confirmed(
    job: JobState,
    facts: Facts,
    confidence: float,
    *,
    at: Call | Operation | None = None,
    seen: Mapping[int, str | Phrase] | None = None,
    evidence: Iterable[EvidenceItem] = (),
    **more: Any,
) -> Finding:
    """Return a confirmed finding with its cost, in the group of `at`; `seen` maps ranks to what their dumps show."""
    fields: dict[str, Any] = {"group": group(job.survey, at.key)} if at else {}
    fields |= {"position": at.seq} if at and at.seq > 0 else {}  # Messages, and calls that stacks show, have none.
    fields |= {"cost": job.cost(), "evidence": (*evidence, *dumps(job.survey, seen or {}))} | more
    return Finding(status="confirmed", facts=facts, confidence=confidence, **fields)


def lines(facts: Sequence[LogFact]) -> tuple[EvidenceItem, ...]:
    """Return the first log lines as evidence."""
    return tuple(fact.quoted() for fact in facts[:CITED])


def last_places(last: LastSeen | None) -> tuple[Where, ...]:
    """Return where a rank was last seen, and the call in which a peer waits for it."""
    if last is None or last.call.site is None:
        return ()
    region = f" (region {region_text(last.call.region)})" if last.call.region else ""
    does = says("was_in" if last.inside else "last_called", what=f"{last.call.text}{region}")
    peer = where(last.peer, last.peer_call, says("waits_in", what=last.peer_call.text)) if last.peer_call else ()
    return (*where(last.rank, last.call, does), *peer)


def after(last: LastSeen | None, ranks: tuple[int, ...]) -> str:
    """Return ` after all_reduce [8] float32 (#3, train.py:17)` for a single rank whose calls are known."""
    if last is None or len(ranks) != 1:
        return ""
    return f"{' in' if last.inside else ' after'} {last.call.cited()}"


def surest(findings: list[Finding]) -> list[Finding]:
    """Return the most confident findings among those of one cause about the same ranks."""
    best: dict[tuple[int, ...], Finding] = {}
    for finding in findings:
        if finding.ranks not in best or finding.confidence > best[finding.ranks].confidence:
            best[finding.ranks] = finding
    return [*best.values()]


def assuming(job: JobState, finding: Finding) -> Finding:
    """Return the finding, with reduced confidence if the members of its group are assumed."""
    ranks = tuple(sorted(job.waits.assumed))
    if not ranks or finding.status != "confirmed":
        return finding
    confidence = min(finding.confidence, ASSUMED)
    return replace(finding, confidence=confidence, facts=_Assuming(finding.facts, ranks))


class _Assuming(Struct, frozen=True):
    facts: Facts
    ranks: tuple[int, ...]
    """Ranks that are assumed not to be in the group."""

    def text(self, finding: Finding) -> Text:
        """Return the text of the facts, with the assumption."""
        text = self.facts.text(finding)
        return replace(text, summary=f"{text.summary} {says('proviso', ranks=self.ranks)}")


def fix(at: Activity, look: Phrase | str = _FIXES["other"]) -> str:
    """Return the fix; `look` if the stack does not show what the host does."""
    return str(_FIXES.get(at.doing, look)) + (f" ({at.frame.file}:{at.frame.line})" if at.frame else "")


def doing(at: Activity, explained: bool = False) -> str:
    """Return a text such as `waiting for a queue (loader.py:7 in get)`; with `explained`, in a form for a sentence."""
    frame = at.frame
    words = f"{at.words}, {at.aside}" if explained and at.aside else str(at.words)
    return words + (f" ({file_name(frame.file)}:{frame.line} in {frame.function})" if frame else "")


def described(place: InCollective) -> str:
    """Return the operation and its line, such as `barrier (train.py:25)`."""
    at = f" ({file_name(place.site.file)}:{place.site.line})" if place.site else ""
    return (place.op or str(says("no_stack"))) + at


def unconfirmed(
    stall: Stall,
    missing: Phrase | str = RECORD,
    *,
    silent: bool = False,
    vanished: bool = False,
    otherwise: Otherwise = lambda stall, waits: None,
) -> Finding:
    """Return why this cause is not confirmed.

    `silent` and `vanished` say whether a rank without a dump that all others wait for, or one whose connections broke,
    may have this cause. `otherwise` decides before the rules that apply to all causes.
    """
    job, positions = stall.job, stall.job.survey.positions
    if missing is RECORD or missing is UNRECORDED:
        missing = recording(job.evidence, RECORD if missing is RECORD else UNRECORDED)
        records = job.survey.ranks.values()
        if missing is RECORD and len(job.waits.of_rank) == job.world() and all(own.stuck_dump for own in records):
            missing = says("recorded")
    if answer := undecidable(stall, missing, silent=silent, vanished=vanished):
        return answer
    if not job.survey.ranks:
        return left_open(says("no_dump"), recording(job.evidence))
    if not positions and not job.any_calls():
        text = says("no_collective", dumps=len(job.survey.ranks))
        return left_open(text, UNRECORDED if missing is RECORD else missing)
    waiting = tuple(sorted(job.waits.of_rank))
    if waiting and not job.stands_still():
        row = "young_ended" if job.ended() else "young" if job.state else "young_unknown"
        later = "" if job.ended() else says("later")
        return left_open(says(row, waited_s=job.waited_s()), later)
    if answer := otherwise(stall, bool(waiting)):
        return answer
    if not waiting and (behind := job.behind()):
        ends = [job.endings[rank] for rank in behind if rank in job.endings]
        unexplained = any(end.in_order or end.only_exit_code or not end.by_itself for end in ends)
        if len(ends) == len(behind) and not unexplained:
            return TEXTS.ruled_out("ended", who=behind, count=len(behind), what=ends[0].summary)
        row = "behind_at_end" if job.ended() or len(ends) == len(behind) else "behind"
        return left_open(says(row, who=behind), missing)
    if not waiting:
        return TEXTS.ruled_out("all_completed", dumps=len(job.survey.ranks), count=positions)
    return replace(TEXTS.undecided("waits", missing=missing), victims=waiting, basis="waiting")


def undecidable(stall: Stall, missing: Phrase | str, *, silent: bool = False, vanished: bool = False) -> Finding | None:
    """Return a finding if the evidence is of several jobs, the run finished, or a rank is unknown; else None."""
    job, absent = stall.job, stall.missing
    if job.evidence.doubt:
        return left_open(job.evidence.doubt, says("one_job"))
    if job.finished():
        return TEXTS.ruled_out("finished", count=job.survey.positions)
    if absent is None:
        return None
    if absent.no_dump and absent.abort is None and silent:
        bad = [problem for problem in job.evidence.problems if problem.kind == "flight" and not problem.harmless]
        apart = next((problem.figures for problem in bad if "apart_s" in problem.figures), None)
        damaged = f" (damaged: {', '.join(problem.file for problem in bad[:4])})" if bad else ""
        damaged_or_apart = says("apart", **apart) if apart else damaged
        text = says("silent", who=absent.waiting, absent=absent.ranks, damaged=damaged_or_apart)
        return left_open(text, says("leftovers", absent=absent.ranks), victims=absent.waiting)
    if absent.no_dump or not vanished:
        return None
    figures = {"who": absent.ranks, "after": after(absent.last, absent.ranks), "waiting": absent.waiting}
    open_ = left_open(says("vanished", **figures), missing, victims=absent.waiting)
    return replace(open_, where=last_places(absent.last))


def left_open(
    text: Phrase | str, missing: Phrase | str, *, victims: tuple[int, ...] = (), basis: Basis = "records"
) -> Finding:
    """Return undecided."""
    return replace(TEXTS.undecided("open", text=text, missing=missing), victims=victims, basis=basis)


def ending_unknown(missing: Phrase | str, ranks: Collection[int]) -> Finding:
    """Return undecided because it is not known how these ranks ended."""
    return left_open(says("ending_unknown", who=ranks), missing, basis="waiting")
