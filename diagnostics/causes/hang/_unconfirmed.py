"""A cause of hangs that is not confirmed: ruled out by what was measured, or open for lack of evidence."""

from collections.abc import Callable, Collection
from typing import Any

from diagnostics.analysis.stall.endings import Missing
from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.last_seen import LastSeen
from diagnostics.causes.hang._parts import RECORD, after, last_places
from diagnostics.contract.findings import Finding, Sentence, Worded, ruled_out
from diagnostics.contract.formatting import ranks_spoken

UNRECORDED = "send and recv, which gloo's recorder leaves out: run dtk watch -- COMMAND, or py-spy dump"
Otherwise = Callable[[Stall, bool], Finding | None]
"""What a cause itself says of a stall, and of whether ranks wait; None = nothing that others do not say."""


def unconfirmed(
    stall: Stall,
    cause: str,
    missing: str = RECORD,
    *,
    silent: bool = False,
    vanished: bool = False,
    otherwise: Otherwise = lambda stall, waits: None,
) -> Finding:
    """Return why this cause is not confirmed.

    Args:
        stall: in which nothing speaks for the cause.
        cause: its id.
        missing: what would decide it.
        silent: whether a rank without a dump that all others wait for may have this cause.
        vanished: whether a rank whose connections broke may have it.
        otherwise: what the cause itself says, before what holds for all causes.
    """
    job, positions = stall.job, stall.job.survey.positions
    if answer := undecidable(stall, cause, missing, silent=silent, vanished=vanished):
        return answer
    if not job.survey.ranks:
        return left_open(cause, "No flight-recorder dump and no ring was found.", RECORD)
    if not positions and not job.any_calls():
        text = (
            "{dumps} dumps hold no collective at all: the ranks are outside torch.distributed, or in send and recv, "
            "which gloo's recorder does not show."
        )
        return left_open(cause, text, UNRECORDED if missing is RECORD else missing, dumps=len(job.survey.ranks))
    waiting = tuple(job.pending_ranks())
    if waiting and not job.stands_still():
        if job.state == "lost":
            text = (
                "When the run was killed its oldest pending call was {waited_s:.1f} s old, too young to call it a hang."
            )
            return left_open(cause, text, "", waited_s=job.waited_s())
        goes_on = "The job is still running;" if job.state else "Nothing shows whether the job has ended;"
        text = "{goes_on} its oldest pending call is {waited_s:.1f} s old, too young to call it a hang."
        return left_open(cause, text, "a later look at the run", goes_on=goes_on, waited_s=job.waited_s())
    if answer := otherwise(stall, bool(waiting)):
        return answer
    if not waiting:
        measured = "0 of {ranks} ranks wait; 0 of {count:,} calls differ"
        summary = "Nothing is pending: every recorded call completed."
        return ruled_out(cause, summary, measured, ranks=len(job.survey.ranks), count=positions)
    if stall.confirmed:
        measured = "{count:#rank} waiting, all for what was confirmed"
        return ruled_out(cause, "What was confirmed explains the waiting.", measured, count=len(waiting))
    text = "{who:^} {who:waits|wait}, and the evidence does not show for whom."
    return left_open(cause, text, missing, about=waiting, victims=waiting)


def undecidable(
    stall: Stall, cause: str, missing: str, *, silent: bool = False, vanished: bool = False
) -> Finding | None:
    """Return the answer where the evidence is of several jobs, the run finished, or nothing is known of a rank."""
    job, absent = stall.job, stall.missing
    if job.evidence.doubt:
        folders = "the dumps of all ranks of one job, in a folder of their own"
        return left_open(cause, "{doubt}", folders, doubt=job.evidence.doubt)
    if job.finished():
        return ruled_out(cause, "The run finished.", "finished, {count:,} calls compared", count=job.survey.positions)
    if absent is None:
        return None
    if absent.no_dump and absent.abort is None and silent:
        return _silent(stall, cause, absent)
    if absent.no_dump or not vanished:
        return None
    return left_open(
        cause,
        "{who:^} went away{after} while {waiting} still waited, and nothing shows how: {who:it|they} exited or "
        "{who:was|were} killed.",
        missing,
        about=absent.ranks,
        victims=absent.waiting,
        last=absent.last,
        after=after(absent.last, absent.ranks),
        waiting=absent.waiting,
    )


def _silent(stall: Stall, cause: str, absent: Missing) -> Finding:
    files = [problem.file for problem in stall.job.evidence.problems if problem.kind == "flight"]
    return left_open(
        cause,
        "{who:^} {who:waits|wait} for {absent}, of which there is no dump that can be read{damaged}: killed, stuck, or "
        "in another call than the peers.",
        f"the dump, stack or log of {ranks_spoken(absent.ranks)}",
        about=absent.waiting,
        victims=absent.waiting,
        absent=absent.ranks,
        damaged=f" (damaged: {', '.join(files[:4])})" if files else "",
    )


def left_open(
    cause: str,
    text: str,
    missing: str,
    *,
    about: Collection[int] = (),
    victims: tuple[int, ...] = (),
    last: LastSeen | None = None,
    **figures: Any,
) -> Finding:
    """Leave it open.

    Args:
        cause: its id.
        text: the reason, in which `{who}` are the ranks of `about`.
        missing: what decides it.
        about: ranks.
        victims: ranks that wait.
        last: where the first rank was seen last.
        figures: in the text.
    """
    return Finding(
        cause=cause,
        status="undecided",
        facts=Worded(Sentence(text, missing), {"who": about} | figures),
        confidence=0.0,
        victims=victims,
        where=last_places(last),
    )


def ending_unknown(cause: str, missing: str, ranks: Collection[int]) -> Finding:
    """Leave it open, as it is not known how these ranks ended."""
    return left_open(cause, "Nothing shows how {who} ended.", missing, about=ranks)
