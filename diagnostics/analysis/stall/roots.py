"""Rooted collectives that all ranks of a group issued and only some completed, in dumps that do not record the root."""

from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.roots import deviating_rank, differing_roots
from diagnostics.analysis.stall.job_state import JobState
from diagnostics.evidence.calls import ROOTED


def roots_differ(job: JobState) -> list[Divergence]:
    """Return the divergences of rooted operations that all issued and only some completed, from dumps without roots."""
    cases, taken = list[Divergence](), job.waits.incomparable()
    for operation, waiting in sorted(job.waits.waiting.items()):
        calls = {rank: job.waits.calls[rank, operation] for rank in waiting}
        wire, complete = calls[waiting[0]].wire, tuple(job.waits.complete[operation])
        if wire.op not in ROOTED or not complete or job.waits.absent[operation] or set(waiting) & taken:
            continue
        if operation.key.recorder == "gloo" and wire.root is None:
            members = job.survey.members(operation.key)
            named = deviating_rank(members, tuple(waiting)) if wire.op == "broadcast" else None
            cases.append(differing_roots(calls, members, () if named is None else (named,)))
            taken |= {*waiting, *complete} | job.waits.reaching(waiting)
    return cases
