"""Two ranks use the same GPU, which NCCL refuses."""

import re
from collections.abc import Sequence

from diagnostics.causes.env._failures import Line, failure_cause, speakers
from diagnostics.contract.findings import Finding, Remedy
from diagnostics.contract.formatting import ranks_spoken, sentence

_PATTERN = re.compile(
    r"Duplicate GPU detected ?: rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<gpu>\w+)"
    r"|Multiple Ranks are using the same (?:GPU|Partition)"
)


def _ranks(lines: Sequence[Line]) -> tuple[int, ...]:
    """Return the ranks that NCCL names, else those that wrote the lines."""
    named = [line.fields.get(side) for line in lines for side in ("first", "second")]
    return tuple(sorted({int(rank) for rank in named if rank is not None})) or speakers(lines)


def _words(finding: Finding, lines: Sequence[Line]) -> tuple[str, Remedy]:
    gpu = lines[0].fields.get("gpu")
    ranks = sentence(ranks_spoken(finding.ranks)) if len(finding.ranks) > 1 else "Several ranks"
    change = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group'
    summary = f"{ranks} use one GPU{f' (device {gpu})' if gpu else ''}; NCCL needs one GPU for each rank."
    return summary, Remedy("code", change, "each rank then has a GPU of its own")


CAUSE = failure_cause(
    id="env.duplicate_gpu",
    title="two ranks use the same GPU",
    remedy="torch.cuda.set_device(LOCAL_RANK) before the first collective",
    decided_from="NCCL's text",
    pattern=_PATTERN,
    kinds=("nccl_duplicate_gpu",),
    words=_words,
    ranks=_ranks,
)
