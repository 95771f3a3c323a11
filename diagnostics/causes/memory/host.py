"""`memory.host`: the memory of the host or of the job's cgroup ran out, so that an allocation or a process ended."""

from diagnostics.analysis.stall.endings import line
from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.causes.declared import declared
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import EvidenceItem, Finding, Remedy, Text, Where, undecided, worded
from diagnostics.contract.formatting import counted, ranks_spoken, sentence
from diagnostics.evidence.endings import UNNAMED, Ending
from diagnostics.evidence.rank_endings import memory_kills

ID = "memory.host"
_TABLE = table_beside(__file__)
_HOST = ("cgroup", "host_memory", "host_allocation")
"""Details of endings that the host's memory is behind."""


def _words(finding: Finding, end: Ending, worker: bool) -> Text:
    who = sentence(ranks_spoken(finding.ranks)) if finding.ranks else "A process of the job"
    happened = f"asked for more memory than the host has left: {end.what.rstrip('.')}"
    if worker:
        happened = "lost a worker of the data loader to the kernel, which killed it for want of memory"
    elif end.detail != "host_allocation":
        why = "the host had no memory left" if end.detail == "host_memory" else "the job reached its memory limit"
        happened = f"was killed by the kernel: {why}"
    fixes = [Remedy(**row) for row in _TABLE["remedies"] if row["kind"] == "code" or end.detail == "cgroup"]
    return Text(summary=f"{who} {happened}.", measured=counted(len(finding.evidence), "record"), remedies=tuple(fixes))


def decide(stall: Stall) -> list[Finding]:
    """Decide from how the ranks ended, and from what the kernel, Slurm and Kubernetes say about processes they killed.

    A worker of the data loader that SIGKILL ended counts beside such a line only: anybody may have sent that signal.
    """
    killed, ends = memory_kills(stall.job.evidence), stall.job.endings
    hosts = [end for end in ends.values() if end.kind == "oom" and end.detail in _HOST]
    workers = [end for end in ends.values() if end.detail == "data_loader_sigkill"] if killed and not hosts else []
    guilty = hosts or workers
    if not guilty:
        summary = "No line reports a process or an allocation that ended for want of host memory."
        missing = "dmesg -T | grep -i 'killed process' on the node, or sacct -j JOB -o State,MaxRSS,ReqMem"
        return [undecided(ID, summary, missing)]
    case = next((case for case in stall.endings if any(end in guilty for end in case.endings)), None)
    ranks = tuple(sorted(end.rank for end in guilty if end.rank != UNNAMED))
    places = [(end.rank, frame) for end in guilty[:4] if (frame := line(end))]
    lines = [EvidenceItem("log", fact.file, fact.text, fact.line) for fact in killed[:4]]
    return [
        Finding(
            cause=ID,
            status="confirmed",
            facts=worded(_words, end=guilty[0], worker=bool(workers)),
            confidence=0.9 if workers or UNNAMED in ends else 0.95,
            ranks=ranks,
            victims=tuple(rank for rank in case.victims if rank not in ranks) if case else (),
            step=next((end.step for end in guilty if end.step is not None), None),
            where=tuple(Where(rank if rank != UNNAMED else None, at.file, at.line, at.function) for rank, at in places),
            evidence=tuple(dict.fromkeys((*(end.evidence for end in guilty[:4]), *lines))),
        )
    ]


CAUSE = declared(__file__, explain, decide)
