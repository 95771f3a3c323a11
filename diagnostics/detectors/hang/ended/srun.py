"""How Slurm says that tasks ended: each is a rank, unless a launcher within the task made several of it.

Knows srun's words only; who went first is for `ends`.
"""

import re
from collections.abc import Iterator
from typing import Literal

from diagnostics.contract.findings import EvidenceItem
from diagnostics.evidence.model import Evidence, shortened

Manner = Literal["raised", "oom", "killed", "aborted", "exited", "unreduced", "lost_peer", "failed"]
"""`failed`: an exit code of 1 and no exception, so whether it or a peer went first is not told."""

_SRUN: dict[str, tuple[Manner, str]] = {
    "Out Of Memory": ("oom", "the kernel killed it because the memory of the job's cgroup was used up (Out Of Memory)"),
    "Killed": ("killed", "SIGKILL"),
    "Segmentation fault": ("killed", "SIGSEGV"),
    "Bus error": ("killed", "SIGBUS"),
    "Illegal instruction": ("killed", "SIGILL"),
    "Floating point exception": ("killed", "SIGFPE"),
    "Aborted": ("aborted", "SIGABRT"),
    "Terminated": ("lost_peer", "SIGTERM"),
}
"""srun's words for how a task ended."""
_SRUN_CODE = re.compile(r"Exited with exit code ([1-9]\d{0,2})\b")


def ends(evidence: Evidence) -> Iterator[tuple[int, Manner, str, EvidenceItem]]:
    """(rank, manner, in words, where it stands) of each task that ended badly."""
    if evidence.launched or any(fact.kind.startswith("torchrun_") for fact in evidence.facts):
        return
    for fact in evidence.facts:
        why = str(fact.fields.get("why", "")) if fact.kind == "srun_task" else ""
        how = next((end for words, end in _SRUN.items() if why.startswith(words)), None)
        if code := _SRUN_CODE.match(why):
            how = ("failed" if code[1] == "1" else "exited"), f"exit code {code[1]}"
        if how is not None:
            item = EvidenceItem("log", fact.file, shortened(fact.text, 200), fact.line)
            yield from ((rank, *how, item) for rank in fact.fields.get("ranks", ()))
