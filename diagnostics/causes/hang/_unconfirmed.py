"""A cause of hangs that is not confirmed: ruled out by what was measured, or open for lack of evidence."""

from collections.abc import Callable, Collection
from typing import Any

from diagnostics.analysis.stall.departure import EndedInRound
from diagnostics.analysis.stall.endings import Missing
from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.last_seen import LastSeen
from diagnostics.causes.hang._asymmetric import disagreements, ruled_out
from diagnostics.causes.hang._parts import RECORD, after, last_places, surest
from diagnostics.causes.hang._relations import ASYMMETRIC, FAILED
from diagnostics.contract.findings import Figures, Finding
from diagnostics.contract.formatting import counted, ranks_spoken, sentence, verb
from diagnostics.evidence.endings import UNNAMED, first_is_unknown

_LAUNCHER_LOG = "the launcher's log, which names exit codes and signals"
_ERROR_FILES = "the ranks' logs or error files: torchrun --log-dir, TORCHELASTIC_ERROR_FILE"
_MISSING = {
    "hang.host_stall": "stacks of the ranks at the stall: dtk watch -- torchrun ..., or py-spy dump",
    "hang.straggler": "stacks of all ranks, twice with a minute between: py-spy dump, or dtk attach",
    "hang.p2p_cycle": "send and recv, which gloo's recorder leaves out: dtk watch -- COMMAND, or py-spy dump",
    "hang.device_stall": "NCCL's completion counters: TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    "hang.rank_raised": _ERROR_FILES,
    "hang.rank_oom": _ERROR_FILES,
    "hang.rank_killed": _LAUNCHER_LOG,
    "hang.rank_exited": _LAUNCHER_LOG,
    "hang.rendezvous": "the log of every node's launcher",
    "hang.signature_mismatch": "root and ReduceOp, which flight dumps leave out: dtk watch -- COMMAND records them",
}
_ENDINGS = (*FAILED, "hang.rank_exited")
_OF_VANISHED = ("hang.rank_exited", "hang.rank_killed", "hang.rank_raised")
_OF_SILENT = ("hang.rank_killed", "hang.host_stall", "hang.collective_mismatch", "hang.conditional_collective")


def unconfirmed(stall: Stall, cause: str) -> Finding:
    """Why this cause is not confirmed.

    Args:
        stall: in which nothing speaks for the cause.
        cause: its id.
    """
    job, positions = stall.job, stall.job.survey.positions
    if job.evidence.doubt:
        missing = "the dumps of all ranks of one job, in a folder of their own"
        return _open(cause, "{doubt}", missing, doubt=job.evidence.doubt)
    if job.finished():
        own = {rank: end.what for rank, end in job.endings.items() if end.kind == "raised" and end.frames}
        if cause == "hang.rank_raised" and own:
            text = "{who} ended with {what}, and the run went on to its end."
            return _open(cause, text, about=own, what=next(iter(own.values())))
        return _ruled_out(cause, "The run finished.", "finished, {count:,} calls compared", count=positions)
    if stall.missing is not None and (finding := _of_missing(stall, stall.missing, cause)):
        return finding
    if cause in _ENDINGS:
        return _of_ending(stall, cause)
    if not job.survey.ranks:
        return _open(cause, "No flight-recorder dump and no ring was found.", RECORD)
    if not positions and not job.any_calls():
        text = (
            "{dumps} dumps hold no collective at all: the ranks are outside torch.distributed, or in send and recv, "
            "which gloo's recorder does not show."
        )
        return _open(cause, text, _MISSING.get(cause, _MISSING["hang.p2p_cycle"]), dumps=len(job.survey.ranks))
    waiting = tuple(job.pending_ranks())
    excluded = _excluded(stall, cause)
    if not waiting:
        return excluded or _nothing_pending(stall, cause)
    if not job.stands_still():
        goes_on = "The run still goes on;" if job.state else "Nothing shows whether the run has ended;"
        text = "{goes_on} its oldest pending call is {waited_s:.1f} s old, too young to call it a hang."
        return _open(cause, text, "a later look at the run", goes_on=goes_on, waited_s=job.waited_s())
    if cause == "hang.uneven_iterations" and not stall.confirmed and (unknown := job.without_ending()):
        return _ending_unknown(cause, unknown)
    if excluded:
        return excluded
    if cause in ASYMMETRIC:
        summary = "All ranks agree at every position that more than one of them reached."
        return _ruled_out(cause, summary, "0 of {count:,} calls differ", count=positions)
    if stall.unclear and cause == "hang.straggler":
        text = "{who} may only be late: nothing is pending there and no stack was left."
        return _open(cause, text, about=stall.unclear)
    if cause == "hang.p2p_cycle" and any(job.may_be_unrecorded(rank) for rank in stall.unclear):
        text = (
            "{who} may wait in a send or recv, which gloo's recorder leaves out: nothing is pending there and no stack "
            "was left."
        )
        return _open(cause, text, about=stall.unclear)
    if stall.confirmed:
        measured = "{ranks} waiting, all for what was confirmed"
        ranks = counted(len(waiting), "rank")
        return _ruled_out(cause, "What was confirmed explains the waiting.", measured, ranks=ranks)
    text = "{who} {waits}, and the evidence does not show for whom."
    return _open(cause, text, about=waiting, victims=waiting)


def decided_by(cause: str, *sources: Callable[[Stall, str], list[Finding]]) -> Callable[[Stall], list[Finding]]:
    """Return how a cause of ranks that disagree is decided.

    Args:
        cause: its id.
        sources: of findings about it, beside the first divergence of the ranks' calls.
    """

    def decide(stall: Stall) -> list[Finding]:
        findings = [finding for source in (disagreements, *sources) for finding in source(stall, cause)]
        return surest(findings) or [unconfirmed(stall, cause)]

    return decide


def _open(
    cause: str,
    text: str,
    missing: str = "",
    *,
    about: Collection[int] = (),
    victims: tuple[int, ...] = (),
    last: LastSeen | None = None,
    **figures: Any,
) -> Finding:
    """Leave it open.

    Args:
        cause: its id.
        text: the reason; of `about` it may name `who` (the subject), `ranks`, and words that agree in number.
        missing: what decides it; by default what decides this cause.
        about: ranks.
        victims: ranks that wait.
        last: where the first rank was seen last.
        figures: in the text.
    """
    spoken = {
        "who": sentence(ranks_spoken(about)),
        "ranks": ranks_spoken(about),
        "it": verb(about, "it", "they"),
        "its": verb(about, "its", "their"),
        "them": verb(about, "it", "them"),
        "was": verb(about, "was", "were"),
        "waits": verb(about, "waits", "wait"),
    }
    return Finding(
        cause=cause,
        status="undecided",
        facts=Figures(text, spoken | figures, missing or _MISSING.get(cause, RECORD)),
        confidence=0.0,
        victims=victims,
        where=last_places(last),
    )


def _ruled_out(cause: str, summary: str, measured: str, **figures: Any) -> Finding:
    return Finding(cause=cause, status="ruled_out", facts=Figures(measured, figures, summary=summary))


def _excluded(stall: Stall, cause: str) -> Finding | None:
    """Rule out what the first divergence, or the place in a round where a rank ended, contradicts."""
    ended = stall.departure
    if cause == "hang.uneven_iterations" and isinstance(ended, EndedInRound) and ended.over:
        summary = (
            "Rank {rank} ended in the middle of a round: after {over} of the {size} calls that its peers' loop repeats."
        )
        measured = "{over} of {size} calls of the last round"
        return _ruled_out(cause, summary, measured, rank=ended.ranks[0], over=ended.over, size=ended.size)
    reason, meet = ruled_out(stall).get(cause, ("", ""))
    return _ruled_out(cause, "{reason}", "{meet}", reason=reason, meet=meet) if reason else None


def _of_missing(stall: Stall, missing: Missing, cause: str) -> Finding | None:
    """Ranks that all others wait for and of which nothing is known."""
    ranks, waiting = missing.ranks, missing.waiting
    if missing.no_dump and missing.abort is None and cause in _OF_SILENT:
        files = [problem.file for problem in stall.job.evidence.problems if problem.kind == "flight"]
        text = (
            "{who} {waits} for {missing_ranks}, of which there is no dump that can be read{damaged}: killed, stuck, or "
            "in another call than the peers."
        )
        return _open(
            cause,
            text,
            f"the dump, stack or log of {ranks_spoken(ranks)}",
            about=waiting,
            victims=waiting,
            missing_ranks=ranks_spoken(ranks),
            damaged=f" (damaged: {', '.join(files[:4])})" if files else "",
        )
    if not missing.no_dump and cause in _OF_VANISHED:
        text = (
            "{who} went away{after} while {waiting} still waited, and nothing shows how: {it} exited or {was} killed."
        )
        return _open(
            cause,
            text,
            about=ranks,
            victims=waiting,
            last=missing.last,
            after=after(missing.last, ranks),
            waiting=ranks_spoken(waiting),
        )
    return None


def _ending_unknown(cause: str, ranks: Collection[int]) -> Finding:
    missing = _MISSING[cause] if cause in _ENDINGS else _LAUNCHER_LOG
    return _open(cause, "Nothing shows how {ranks} ended.", missing, about=ranks)


def _of_ending(stall: Stall, cause: str) -> Finding:
    job = stall.job
    late = {rank: end.what for rank, end in job.after_stall.items() if end.kind == cause.removeprefix("hang.rank_")}
    if late:
        text = "{who} ended with {what} only after {it} had waited for others: the wait came first."
        return _open(cause, text, about=late, what=next(iter(late.values())))
    if stall.unclear:
        text = "{who} left no error and no stack, so how {it} ended is not known."
        return _open(cause, text, about=stall.unclear)
    silent = [rank for rank in range(job.world()) if job.silent(rank) and rank not in job.endings]
    if silent and job.pending_ranks():
        return _open(cause, "{who} left no dump and no error.", about=silent)
    if not stall.confirmed:
        if failed := [rank for rank, end in job.endings.items() if end.kind == "failed"]:
            text = (
                "{who} ended with exit code 1 and left no traceback: an error of {its} own, or what a peer did to "
                "{them}."
            )
            return _open(cause, text, about=failed)
        if unknown := job.without_ending():
            return _ending_unknown(cause, unknown)
        if first_is_unknown(job.endings.values()):
            text = (
                "Every known ending ({ranks}) is that of a rank that lost a peer or was stopped; which rank failed "
                "first is not known."
            )
            if UNNAMED in job.endings:
                text = (
                    "The log shows one rank, without naming it, that lost a peer; which rank failed first is not known."
                )
            return _open(cause, text, about=sorted(job.endings))
    summary, measured = "No rank ended this way before the others.", "0 of {world} ranks; {count} endings known"
    return _ruled_out(cause, summary, measured, world=max(job.world(), 1), count=len(job.endings))


def _nothing_pending(stall: Stall, cause: str) -> Finding:
    """Every recorded call completed."""
    job, positions = stall.job, stall.job.survey.positions
    behind = job.behind()
    if behind and cause in {"hang.uneven_iterations", "hang.host_stall"}:
        text = "{who} made fewer calls than {its} peers, and nothing shows whether the job had ended."
        return _open(cause, text, about=behind)
    unseen = [rank for rank in sorted(job.survey.ranks) if job.may_be_unrecorded(rank)]
    if cause == "hang.p2p_cycle" and unseen:
        text = "Every recorded call completed, but gloo records no send or recv: {ranks} may wait in one of these."
        return _open(cause, text, about=unseen)
    if cause == "hang.signature_mismatch":
        summary = "All ranks issued the same calls and all completed; root and ReduceOp are not in these dumps."
        return _ruled_out(cause, summary, "0 of {count:,} calls differ", count=positions)
    measured = "0 of {ranks} ranks wait; 0 of {count:,} calls differ"
    summary = "Nothing is pending: every recorded call completed."
    return _ruled_out(cause, summary, measured, ranks=len(job.survey.ranks), count=positions)
