"""Two ranks use the same GPU, which NCCL refuses."""

import re
from dataclasses import dataclass

from diagnostics.causes.env._failures import Said, failure_cause, lines, speakers
from diagnostics.contract.findings import Finding, Remedy, Text

_PATTERN = re.compile(
    r"Duplicate GPU detected ?: rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<gpu>\w+)"
    r"|Multiple Ranks are using the same (?:GPU|Partition)"
)


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """Who shares which."""

    gpu: str
    """As NCCL numbers it; empty = not named."""
    lines: int

    def text(self, finding: Finding) -> Text:
        """Put it into words."""
        device = f" (device {self.gpu})" if self.gpu else ""
        ranks = f"Ranks {', '.join(map(str, finding.ranks))}" if len(finding.ranks) > 1 else "Several ranks"
        change = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group'
        return Text(
            summary=f"{ranks} use one GPU{device}; NCCL needs one each.",
            measured=lines(self.lines),
            remedies=(Remedy("code", change, "one each"),),
        )


def _facts(said: list[Said]) -> tuple[SharedGpu, tuple[int, ...]]:
    named = [line.fields[side] for line in said for side in ("first", "second") if line.fields.get(side) is not None]
    return SharedGpu(str(said[0].fields.get("gpu") or ""), len(said)), tuple(sorted(set(map(int, named)))) or speakers(
        said
    )


CAUSE = failure_cause(
    id="env.duplicate_gpu",
    title="two ranks use the same GPU",
    remedy="torch.cuda.set_device(LOCAL_RANK) before the first collective",
    decided_from="NCCL's text",
    pattern=_PATTERN,
    kinds=("nccl_duplicate_gpu",),
    facts=_facts,
)
