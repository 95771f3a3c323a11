"""A file system or a disk does not respond, which blocks reads and writes."""

from msgspec import Struct

from diagnostics.analysis.node_health import node_health
from diagnostics.analysis.observations import observations
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.findings import CITED, LIKELY, SEEN, EvidenceItem, Finding, confirmed
from diagnostics.contract.formatting import Phrase
from diagnostics.evidence.model import Evidence, LogFact
from diagnostics.evidence.stacks.activity import doing

_TEXTS = Texts(__file__)
_LEAST_S = 30.0
"""Seconds in kernel state D without a break. Network file systems respond within seconds even under load."""


class Waits(Struct, frozen=True):
    """Evidence that storage does not respond."""

    lines: tuple[LogFact, ...]
    ranks: dict[int, tuple[float, str]]
    """Rank -> seconds in state D at the last observation (0 if only its stack shows it), and the file that shows it."""
    looked: bool
    """Whether the state of the ranks' main threads was observed."""
    doing: str | Phrase
    """What such a rank does according to its stack."""


def waits(evidence: Evidence) -> Waits:
    """Return the evidence about storage from the kernel log, telemetry and external observation."""
    nodes, observed = node_health(evidence), observations(evidence)
    ranks = {rank: (seconds, node.file) for node in nodes for rank, seconds in node.disk_waits_s}
    ranks |= {rank: (look.blocked_s, look.file) for rank, look in observed.items() if look.last.state == "D"}
    ranks = {rank: wait for rank, wait in sorted(ranks.items()) if wait[0] >= _LEAST_S}
    seen = [fact.fields.get("last", fact) for fact in evidence.facts if fact.kind.startswith("storage_")]
    back = {(fact.file, fact.fields["server"]): fact.line for fact in seen if fact.kind == "storage_back"}
    lines = tuple(f for f in seen if f.kind == "storage_silent" and back.get((f.file, f.fields["server"]), 0) < f.line)
    last = {dump.rank: (dump, doing(dump)) for dump in evidence.stacks if dump.rank is not None}
    doing_io = {rank: at for rank, (_, at) in last.items() if at.doing == "file I/O" and (lines or rank in ranks)}
    ranks = {rank: (0.0, last[rank][0].file) for rank in doing_io} | ranks
    if ranks:  # A failed read raises an exception, so alone it is no stall.
        lines += tuple(fact for fact in evidence.facts if fact.kind == "disk_error")
    place = next((_TEXTS.phrase("doing", at=at) for at in doing_io.values() if at.frame), "")
    return Waits(lines, ranks, bool(observed) or any(node.ranks for node in nodes), place)


def decide(case: Waits) -> Finding:
    """Decide from ranks that stay in state D, and from kernel log lines about servers and disks."""
    if not (case.lines or case.ranks):
        return _TEXTS.undecided(["none" if case.looked else "unseen", "open"])
    seen = (("telemetry" if waited_s else "stacks", file, rank) for rank, (waited_s, file) in case.ranks.items())
    items = [EvidenceItem(kind, file, _TEXTS.phrase("seen", rank=rank)) for kind, file, rank in seen]
    items += [fact.quoted() for fact in case.lines[:CITED]]
    longest = max((seconds for seconds, _ in case.ranks.values()), default=0.0)
    names = dict.fromkeys(name for fact in case.lines if (name := str(fact.fields.get("server") or "")))
    return confirmed(
        facts=_TEXTS.facts(
            "both" if case.ranks and case.lines else "waits" if case.ranks else "default",
            long=_TEXTS.phrase("long", longest=longest) if longest else "",
            where=f" ({case.doing})" if case.doing else "",
            silent=[*names] or _TEXTS.phrase("disk"),
            waiting=len(case.ranks),
            lines=len(case.lines),
        ),
        confidence=SEEN if case.lines and case.ranks else LIKELY,
        ranks=tuple(case.ranks),
        evidence=tuple(items[:CITED]),
    )


CAUSE = declared(__file__, waits, decide)
