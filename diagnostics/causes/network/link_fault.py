"""A link between two nodes failed: a cable, a port, a switch, or the route between two network devices."""

from collections import Counter

from msgspec import Struct

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.symptoms.state import ended_by
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import CITED, LIKELY, OPEN, SUSPECTED, Finding, FormattedFacts, confirmed
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.readers.log import last_progress

_TEXTS = Texts(__file__)
RETRY_EXCEEDED = {12: "not_acknowledged", 13: "not_ready"}
"""Status of a work completion (`ibv_wc_status`) that concerns the path between two ports. 5 (flushed) only follows from
an earlier error; 4, 10 and 11 are about memory and rights."""
_NO_WAY, _REFUSED = (frozenset(table_beside(__file__)[name]) for name in ("no_way", "refused"))
"""Errors of `ibv_modify_qp` if two network devices cannot reach each other, and if this one refused the settings of a
connection, which come from both. Others concern the local device."""


class LinkFaults(Struct, frozen=True):
    """Failed completions, ports that went down, and what they have in common."""

    completions: tuple[LogFact, ...]
    """Completions with a status in `RETRY_EXCEEDED`."""
    ports: tuple[LogFact, ...]
    """Ports for which NCCL reported an error, in a job that waits or ended in communication."""
    down: tuple[LogFact, ...]
    """`Link down` messages of the kernel, which alone may concern an unused interface or the boot of the machine."""
    unreached: tuple[LogFact, ...] = ()
    """Connections that were never established, for a reason in `_NO_WAY`."""
    refused: tuple[LogFact, ...] = ()
    """The same, for a reason in `_REFUSED`."""
    without: str = "none"
    """What else was seen, as a row of the texts. Errors of ports may end nothing, as the transport retries."""
    is_tied: bool = True
    """Whether more than the order of the lines ties an error of a port to the end of the job."""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Pairs of (host, peer address), the most frequent first."""
        counts = Counter((_host(fact), _address(fact)) for fact in self.completions)
        return tuple(pair for pair, _ in counts.most_common())

    @property
    def common(self) -> str:
        """The device, port, host or peer that all lines share, or the device of a single completion; empty if none."""
        facts = (*self.completions, *self.ports, *self.unreached)
        named = [[str(fact.fields.get(key, "")) for key in ("device", "local_gid")] for fact in facts]
        parts = [(*names, _address(fact), _host(fact)) for names, fact in zip(named, facts, strict=True)]
        shared = (set(values).pop() for values in zip(*parts) if len(set(values)) == 1)
        return next(filter(None, shared), "") if len(facts) > 1 else next(shared, "") if self.completions else ""


def link_faults(stall: Stall) -> LinkFaults:
    """Return the link faults in the logs of all ranks."""
    evidence = stall.job.evidence
    completions = [fact for fact in evidence.facts if fact.kind == "nccl_ib_error"]
    events = [fact for fact in evidence.facts if fact.kind == "nccl_ib_async" and "failed" in fact.fields]
    ended, went_on = ended_by(stall.job), last_progress(evidence)
    ports = [fact for fact in events if fact.line > went_on.get(fact.file, 0) and ended(fact.file, fact.line)]
    failed_in_communication = ended_by(stall.job, by_exit_codes=False)
    tied = any(_is_fatal(fact) or failed_in_communication(fact.file, fact.line) for fact in ports)
    down = [fact for fact in evidence.facts if fact.kind == "link_down"]
    failed = [fact for fact in completions if fact.fields.get("status") in RETRY_EXCEEDED]
    failed = [fact for fact in failed if "process" in fact.fields] or failed  # An exception repeats NCCL's warning.
    attempts = (fact for fact in evidence.facts if fact.kind == "nccl_qp_failed")
    pairs = [(f, str(f.fields.get("why"))) for f in attempts if ended(f.file, f.line) is not False]
    unreached, refused = (tuple(fact for fact, why in pairs if why in errors) for errors in (_NO_WAY, _REFUSED))
    without = "followed" if completions else "event" if events else "down" if down else "none"
    return LinkFaults(tuple(failed), tuple(ports), tuple(down), unreached, refused, without, tied)


def _is_fatal(event: LogFact) -> bool:
    """Return whether the device fails with all of its connections; a port that had an error may come back."""
    return bool(event.fields["failed"] != "port error")


def _host(fact: LogFact) -> str:
    return str(fact.fields.get("process", "")).partition(":")[0]


def _address(fact: LogFact) -> str:
    return str(fact.fields.get("peer", "")).partition("<")[0]


def _facts(faults: LinkFaults) -> FormattedFacts:
    parts = []
    if faults.completions:
        status = faults.completions[0].fields["status"]
        pairs = [_TEXTS.phrase("pair", host=host or "a rank", peer=peer or "a peer") for host, peer in faults.pairs]
        reason = _TEXTS.phrase(RETRY_EXCEEDED[status])
        parts.append(_TEXTS.phrase("completion", status=status, pairs=pairs[:CITED], reason=reason))
    named = [fact.fields for fact in (*faults.ports, *faults.down) if fact.fields.get("device")]
    down = dict.fromkeys(f"{each['device']}{':' + str(each['port']) if 'port' in each else ''}" for each in named)
    is_fatal = any(map(_is_fatal, faults.ports))
    if down or faults.ports:
        parts.append(_TEXTS.phrase("device" if is_fatal else "ports" if down else "port", ports=[*down]))
    if faults.unreached:
        fields = faults.unreached[0].fields
        why = [str(fields["why"]), *([f"on {fields['device']}"] if fields.get("device") else [])]
        parts.append(_TEXTS.phrase("unreached", why=why))
    lines = len(facts := (*faults.completions, *faults.ports, *faults.unreached))
    if not facts:
        return _TEXTS.facts("refused", lines=len(faults.refused))
    first = "of_device" if is_fatal and not faults.completions else "default"
    rows = (first, "common" if lines > 1 else "single", "look_at_common") if faults.common else (first, "look_at_both")
    device = faults.common if faults.common in {fact.fields.get("device") for fact in facts} else "DEVICE"
    return _TEXTS.facts(rows, parts=parts, common=faults.common, device=device, lines=lines)


def decide(stall: Stall) -> Finding:
    """Decide from NCCL's InfiniBand errors and from messages of the network driver."""
    faults = link_faults(stall)
    certain = (*faults.completions, *faults.ports, *faults.unreached)
    lines = certain or faults.refused
    if not lines:
        return _TEXTS.undecided([faults.without, "open"])
    is_shown = faults.completions or faults.unreached or (faults.ports and faults.is_tied)
    return confirmed(
        facts=_facts(faults),
        # A peer that died stops acknowledging too, and a driver or NCCL may pass settings that no device accepts.
        confidence=LIKELY if is_shown else SUSPECTED if certain else OPEN,
        victims=tuple(sorted({fact.rank for fact in lines if fact.rank is not None})),
        evidence=tuple(fact.quoted() for fact in (*lines, *faults.down)[:CITED]),
    )


CAUSE = declared(__file__, explain, decide)
