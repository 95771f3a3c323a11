"""What NCCL's InfiniBand transport and network drivers say about links. Holds no cause."""

from collections import Counter
from dataclasses import dataclass

from diagnostics.evidence.model import Evidence, LogFact

RETRY_EXCEEDED = {12: "the peer did not acknowledge (retry count exceeded)", 13: "the peer was not ready (RNR retry)"}
"""Status of a work completion (`ibv_wc_status`) that speaks of the way between two ports. 5 (flushed) only follows from
an earlier error; 4, 10 and 11 are about memory and rights."""


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """Completions that failed, ports that went down, and what they have in common."""

    completions: tuple[LogFact, ...]
    """With a status of `RETRY_EXCEEDED`."""
    ports: tuple[LogFact, ...]
    """Ports of which NCCL saw an error."""
    down: tuple[LogFact, ...]
    """`Link down` of the kernel: alone it may be of an interface that nobody uses, or of the start of the machine."""
    followed: tuple[LogFact, ...]
    """Completions with any other status."""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(host, address of its peer), the most frequent first."""
        counts = Counter((_host(fact), _address(fact)) for fact in self.completions)
        return tuple(pair for pair, _ in counts.most_common())

    @property
    def common(self) -> str:
        """The device, port, host or peer that all lines share; empty where there is none, or but one line."""
        facts = (*self.completions, *self.ports)
        named = [[str(fact.fields.get(key, "")) for key in ("device", "local_gid")] for fact in facts]
        parts = [(*names, _address(fact), _host(fact)) for names, fact in zip(named, facts, strict=True)]
        shared = (set(values).pop() for values in zip(*parts) if len(set(values)) == 1)
        return next(filter(None, shared), "") if len(facts) > 1 else ""


def link_faults(evidence: Evidence) -> LinkFaults:
    """Return what all ranks' lines say about links."""
    completions = [fact for fact in evidence.facts if fact.kind == "nccl_ib_error"]
    ports = [fact for fact in evidence.facts if fact.kind == "nccl_ib_async" and "failed" in fact.fields]
    down = [fact for fact in evidence.facts if fact.kind == "link_down"]
    failed = [fact for fact in completions if fact.fields.get("status") in RETRY_EXCEEDED]
    return LinkFaults(tuple(failed), tuple(ports), tuple(down), tuple(f for f in completions if f not in failed))


def _host(fact: LogFact) -> str:
    return str(fact.fields.get("process", "")).partition(":")[0]


def _address(fact: LogFact) -> str:
    return str(fact.fields.get("peer", "")).partition("<")[0]
