"""Two processes have the same rank, which NCCL refuses when the second one joins."""

import re
from collections.abc import Sequence

from diagnostics.causes.env._failures import Line, failure_cause
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.formatting import ranks_spoken


def _words(finding: Finding, lines: Sequence[Line]) -> tuple[str, Remedy]:
    change = (
        "look for a process of an earlier attempt that still runs (ps, nvidia-smi) and for a second launcher with the "
        "same --node_rank; give each launch its own --rdzv_id and port"
    )
    return f"Two processes joined as {ranks_spoken(finding.ranks)}.", Remedy("code", change, "every rank joins once")


CAUSE = failure_cause(
    id="env.duplicate_rank",
    title="two processes have the same rank",
    remedy="end processes of earlier attempts; one --node_rank per node",
    decided_from="NCCL's text",
    pattern=re.compile(r"rank (?P<duplicate>\d+) of \d+ ranks has already checked in"),
    kinds=("nccl_duplicate_rank",),
    words=_words,
    ranks=lambda lines: tuple(sorted({int(line.fields["duplicate"]) for line in lines})),
)
