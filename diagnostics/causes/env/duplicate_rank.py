"""Two processes have the same rank, which NCCL refuses when the second one joins."""

import re
from dataclasses import dataclass

from diagnostics.causes.env._failures import Said, failure_cause, lines
from diagnostics.contract.findings import Finding, Remedy, Text
from diagnostics.contract.formatting import ranks_spoken


@dataclass(frozen=True, slots=True)
class SameRank:
    """How many lines say so."""

    lines: int

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        change = (
            "look for a process of an earlier attempt that still runs (ps, nvidia-smi) and for a second launcher with "
            "the same --node_rank; give each launch its own --rdzv_id and port"
        )
        return Text(
            summary=f"Two processes joined as {ranks_spoken(finding.ranks)}.",
            measured=lines(self.lines),
            remedies=(Remedy("code", change, "every rank joins once"),),
        )


def _facts(said: list[Said]) -> tuple[SameRank, tuple[int, ...]]:
    return SameRank(len(said)), tuple(sorted({int(line.fields["duplicate"]) for line in said}))


CAUSE = failure_cause(
    id="env.duplicate_rank",
    title="two processes have the same rank",
    remedy="end processes of earlier attempts; one --node_rank per node",
    decided_from="NCCL's text",
    pattern=re.compile(r"rank (?P<duplicate>\d+) of \d+ ranks has already checked in"),
    kinds=("nccl_duplicate_rank",),
    facts=_facts,
)
