"""Decides hang causes that are not confirmed: ruled out by measurements, or undecided for lack of evidence."""

from collections.abc import Callable, Collection

from msgspec.structs import replace

from diagnostics.analysis.stall.explain import Stall
from diagnostics.causes.declared import Texts
from diagnostics.causes.hang._parts import RECORD, after, last_places, recording
from diagnostics.contract.findings import Basis, Finding
from diagnostics.contract.formatting import Phrase

TEXTS = Texts(__file__)
UNRECORDED = TEXTS.phrase("send_and_recv")
Otherwise = Callable[[Stall, bool], Finding | None]
"""Decides for a single cause, given a stall and whether ranks wait; returns None to apply the general rules."""


def unconfirmed(
    stall: Stall,
    missing: Phrase | str = RECORD,
    *,
    silent: bool = False,
    vanished: bool = False,
    otherwise: Otherwise = lambda stall, waits: None,
) -> Finding:
    """Return why this cause is not confirmed.

    `silent` and `vanished` say whether a rank without a dump that all others wait for, or one whose connections broke,
    may have this cause. `otherwise` decides before the rules that apply to all causes.
    """
    job, positions = stall.job, stall.job.survey.positions
    if missing is RECORD or missing is UNRECORDED:
        missing = recording(job.evidence, RECORD if missing is RECORD else UNRECORDED)
        records = job.survey.ranks.values()
        if missing is RECORD and len(job.waits.of_rank) == job.world() and all(own.stuck_dump for own in records):
            missing = TEXTS.phrase("recorded")
    if answer := undecidable(stall, missing, silent=silent, vanished=vanished):
        return answer
    if not job.survey.ranks:
        return left_open(TEXTS.phrase("no_dump"), recording(job.evidence))
    if not positions and not job.any_calls():
        text = TEXTS.phrase("no_collective", dumps=len(job.survey.ranks))
        return left_open(text, UNRECORDED if missing is RECORD else missing)
    waiting = tuple(job.pending_ranks())
    if waiting and not job.stands_still():
        row = "young_lost" if job.state == "lost" else "young" if job.state else "young_unknown"
        later = "" if job.state == "lost" else TEXTS.phrase("later")
        return left_open(TEXTS.phrase(row, waited_s=job.waited_s()), later)
    if answer := otherwise(stall, bool(waiting)):
        return answer
    if not waiting and (behind := job.behind()):
        ends = [job.endings[rank] for rank in behind if rank in job.endings]
        unexplained = any(end.in_order or end.only_exit_code or not end.by_itself for end in ends)
        if len(ends) == len(behind) and not unexplained:
            return TEXTS.ruled_out("ended", who=behind, count=len(behind), what=ends[0].summary)
        row = "behind_at_end" if job.state or len(ends) == len(behind) else "behind"
        return left_open(TEXTS.phrase(row, who=behind), missing)
    if not waiting:
        return TEXTS.ruled_out("completed", dumps=len(job.survey.ranks), count=positions)
    return replace(TEXTS.undecided("waits", missing=missing), victims=waiting, basis="waiting")


def undecidable(stall: Stall, missing: Phrase | str, *, silent: bool = False, vanished: bool = False) -> Finding | None:
    """Return a finding if the evidence is of several jobs, the run finished, or a rank is unknown; else None."""
    job, absent = stall.job, stall.missing
    if job.evidence.doubt:
        return left_open(job.evidence.doubt, TEXTS.phrase("one_job"))
    if job.finished():
        return TEXTS.ruled_out("finished", count=job.survey.positions)
    if absent is None:
        return None
    if absent.no_dump and absent.abort is None and silent:
        files = [problem.file for problem in job.evidence.problems if problem.kind == "flight"]
        damaged = f" (damaged: {', '.join(files[:4])})" if files else ""
        text = TEXTS.phrase("silent", who=absent.waiting, absent=absent.ranks, damaged=damaged)
        return left_open(text, TEXTS.phrase("leftovers", absent=absent.ranks), victims=absent.waiting)
    if absent.no_dump or not vanished:
        return None
    figures = {"who": absent.ranks, "after": after(absent.last, absent.ranks), "waiting": absent.waiting}
    open_ = left_open(TEXTS.phrase("vanished", **figures), missing, victims=absent.waiting)
    return replace(open_, where=last_places(absent.last))


def left_open(
    text: Phrase | str, missing: Phrase | str, *, victims: tuple[int, ...] = (), basis: Basis = "records"
) -> Finding:
    """Return undecided."""
    return replace(TEXTS.undecided("open", text=text, missing=missing), victims=victims, basis=basis)


def ending_unknown(missing: Phrase | str, ranks: Collection[int]) -> Finding:
    """Return undecided because it is not known how these ranks ended."""
    return left_open(TEXTS.phrase("ending_unknown", who=ranks), missing, basis="waiting")
