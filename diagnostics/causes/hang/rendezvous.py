"""The start-up never completed: ranks wait for others that did not come, or the rendezvous timed out."""

from diagnostics.analysis.stall.blameless import Startup, lasted_s
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import declared, texts_beside
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Remedy, Text, worded
from diagnostics.contract.formatting import counted, file_name, ranks_spoken, sentence, verb
from diagnostics.evidence.model import shortened
from diagnostics.evidence.readers.start import own_frame

ID = "hang.rendezvous"
_TEXTS = texts_beside(__file__)


def _not_complete_text(finding: Finding, case: Startup) -> Text:
    waiting, missing, stuck = case.waiting, case.missing, case.stuck
    summary = (
        f"{sentence(ranks_spoken(waiting))} {verb(waiting, 'waits', 'wait')} in init_process_group for "
        f"{case.waited_s:.0f} s"
    )
    if not stuck:
        come = f"{ranks_spoken(missing)} {verb(missing, 'has', 'have')} not come"
        return Text(
            summary=f"{summary}, and {come}: {_why(case, missing)}.",
            missing="dtk watch on every node with one --folder, or py-spy dump of the processes that did not come",
        )
    first = finding.where[0] if finding.where and finding.where[0].rank in stuck else None
    at = f" at {file_name(first.file)}:{first.line} in {first.function}" if first else ""
    summary += f"; {ranks_spoken(stuck)} never {verb(stuck, 'comes', 'come')}: it stands still{at}."
    others = tuple(rank for rank in missing if rank not in stuck)
    if others:
        summary += f" {sentence(ranks_spoken(others))} did not come either: {_why(case, others)}."
    change = "let this rank come to init_process_group, or do on all ranks what it waits for after it"
    return Text(
        summary=summary,
        measured=f"{len(waiting)} of {len(waiting) + len(missing)} ranks came and waited {case.waited_s:.0f} s",
        remedies=(
            Remedy(
                "code",
                f"{first.file}:{first.line}: {change}" if first else change,
                "the group is made only when every rank has come",
            ),
        ),
    )


def _why(case: Startup, ranks: tuple[int, ...]) -> str:
    unknown = [rank for rank in ranks if rank not in case.starts]
    if unknown:
        return f"nothing was left by {ranks_spoken(unknown)}"
    return f"{verb(ranks, 'it was', 'they were')} still at work"


def decide(stall: Stall) -> list[Finding]:
    """Decide from what `dtk watch` records during start-up, else from messages of the store and the rendezvous."""
    case, job = stall.startup, stall.job
    if isinstance(case, Startup):
        return [_finding(case)]
    if case is None:
        return [unconfirmed(stall, ID, "the log of every node's launcher")]
    victims = tuple(sorted({fact.rank for fact in case.facts if fact.rank is not None}))
    kinds = [fact.kind for fact in case.facts]
    said = next((kind for kind in ("port_in_use", "mesh_failed") if kind in kinds), "usual")
    message, count = shortened(case.facts[0].text.strip().rstrip("."), 200), counted(len(kinds), "message")
    facts, lines = worded(_TEXTS, said=said, message=message, count=count), _parts.lines(case.facts[:4])
    return [_parts.confirmed(job, ID, facts, 0.85, evidence=lines, victims=victims)]


def _finding(case: Startup) -> Finding:
    facts = worded(_not_complete_text, case=case)
    if not case.stuck:
        return Finding(cause=ID, status="undecided", facts=facts, confidence=0.0, victims=case.waiting)
    stands = "has not come to init_process_group"
    return Finding(
        cause=ID,
        status="confirmed",
        facts=facts,
        confidence=0.9,
        ranks=case.stuck,
        victims=case.waiting,
        where=tuple(
            place
            for rank, does in (
                *((rank, stands) for rank in case.stuck[:4]),
                (case.waiting[0], "waits in init_process_group"),
            )
            for place in _parts.where(rank, own_frame(case.starts[rank]), does)
        ),
        cost=Cost(round(case.waited_s, 1), "s blocked"),
        evidence=tuple(
            EvidenceItem("log", fact.file, f"{fact.text} for {lasted_s(fact, 'since_s'):.0f} s")
            for fact in (case.starts[rank] for rank in (*case.stuck[:3], *case.waiting[:3]))
        ),
    )


CAUSE = declared(__file__, explain, decide)
