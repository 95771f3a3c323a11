"""The ranks load different versions of NCCL, which refuses to start."""

import re
from dataclasses import dataclass

from diagnostics.causes.env._failures import Said, failure_cause, lines, speakers
from diagnostics.contract.findings import Finding, Remedy, Text

_PATTERN = re.compile(r"Mismatched NCCL version detected ?:? ?(?P<detail>[^\n]*)")
_DETAIL = 120
"""Characters of NCCL's own words that are shown."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What NCCL says of them."""

    detail: str
    lines: int

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        detail = f" ({self.detail})" if self.detail else ""
        return Text(
            summary=f"The ranks run different versions of NCCL{detail}; it refuses to start.",
            measured=lines(self.lines),
            remedies=(
                Remedy(
                    "code", "install the same torch build (same image) on every node", "NCCL is compiled into torch"
                ),
            ),
        )


def _facts(said: list[Said]) -> tuple[Versions, tuple[int, ...]]:
    return Versions(str(said[0].fields.get("detail") or "").strip()[:_DETAIL], len(said)), speakers(said)


CAUSE = failure_cause(
    id="env.version_mismatch",
    title="ranks load different versions of NCCL",
    remedy="one image on all nodes",
    decided_from="NCCL's text",
    pattern=_PATTERN,
    kinds=("nccl_version_mismatch",),
    facts=_facts,
)
