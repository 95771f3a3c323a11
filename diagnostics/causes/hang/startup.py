"""The first collective of a group never completes on any of its ranks: their connections never came up."""

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.standing import Waiting, standing
from diagnostics.causes.declared import declared
from diagnostics.causes.hang import _parts
from diagnostics.causes.hang._unconfirmed import unconfirmed
from diagnostics.contract.findings import Cost, Finding, Group, Remedy, Text, worded
from diagnostics.contract.formatting import ranks_spoken, sentence

_CONFIDENCE = 0.75
"""A size or a number format that differs between ranks, which the lines do not print, looks the same."""


def _words(finding: Finding, wait: Waiting) -> Text:
    return Text(
        summary=(
            f"{sentence(ranks_spoken(wait.ranks))}, all of the group, wait in its first collective ({wait.op}), "
            "and none of them completes it: NCCL's connections between them never came up. "
            "Exceptions after that timeout are consequences."
        ),
        measured=f"{len(wait.ranks)} of {wait.members} ranks in the first collective, 0 completed",
        remedies=(
            Remedy(
                "environment",
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,GRAPH,P2P,NET shows the last stage of each rank; "
                "on one node try NCCL_P2P_DISABLE=1 (IOMMU or ACS breaks peer access), between nodes the "
                "interface in NCCL_SOCKET_IFNAME",
                "a collective that works with one of these names the transport at fault",
            ),
        ),
    )


def decide(stall: Stall) -> list[Finding]:
    """Decide from the lines of the watchdogs of all ranks of a group."""
    seen = None if stall.job.finished() or stall.job.any_calls() else standing(stall.job.evidence)
    wait = next((wait for wait in seen.waits if wait.first and wait.whole_group), None) if seen else None
    if wait is None:
        return [unconfirmed(stall, "hang.startup")]
    lines = [fact for fact in stall.job.evidence.facts if fact.kind == "watchdog_timeout" and fact.rank in wait.ranks]
    return [
        Finding(
            cause="hang.startup",
            status="confirmed",
            facts=worded(_words, wait=wait),
            confidence=_CONFIDENCE,
            victims=wait.ranks,
            group=Group(wait.group, wait.ranks),
            position=wait.seq,
            cost=Cost(wait.waited_s, "s blocked") if wait.waited_s else None,
            evidence=_parts.lines(lines[:2]),
        )
    ]


CAUSE = declared(__file__, explain, decide)
