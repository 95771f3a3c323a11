"""Shared parts of findings about hangs: source lines, groups, evidence from dumps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.histories.align import Survey
from diagnostics.analysis.histories.printed import LOGGED, RECORDER as PRINTED
from diagnostics.analysis.stall.endings import LastSeen
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.analysis.stall.stack_evidence import KEY as STACKS
from diagnostics.analysis.wait_graph.graph import Operation
from diagnostics.causes.declared import Texts
from diagnostics.contract.findings import ASSUMED, CITED, Basis, EvidenceItem, Facts, Finding, Group, Text, Where
from diagnostics.contract.formatting import Phrase, region_text
from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.model import Evidence, Frame, LogFact
from diagnostics.evidence.readers.start import watched

says = Texts(__file__).phrase
"""Returns what a rank does, or what its record shows, from a row of the YAML file next to this module."""
RECORD, _WATCHED, _RUN = map(says, ("record", "watched", "run"))  # How to record the calls of all ranks.


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
