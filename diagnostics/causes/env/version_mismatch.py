"""The ranks load different versions of NCCL, which refuses to start."""

import re
from collections.abc import Sequence

from diagnostics.causes.env._failures import Line, failure_cause
from diagnostics.contract.findings import Finding, Remedy

_DETAIL = 120
"""Characters of NCCL's own words that are shown."""


def _words(finding: Finding, lines: Sequence[Line]) -> tuple[str, Remedy]:
    detail = str(lines[0].fields.get("detail") or "").strip()[:_DETAIL]
    summary = f"The ranks run different versions of NCCL{f' ({detail})' if detail else ''}; it refuses to start."
    change = "install the same torch build (same image) on every node"
    return summary, Remedy("code", change, "NCCL is compiled into torch")


CAUSE = failure_cause(
    id="env.version_mismatch",
    title="ranks load different versions of NCCL",
    remedy="one image on all nodes",
    decided_from="NCCL's text",
    pattern=re.compile(r"Mismatched NCCL version detected ?:? ?(?P<detail>[^\n]*)"),
    kinds=("nccl_version_mismatch",),
    words=_words,
)
