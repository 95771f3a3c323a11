"""A cause of hangs that is not confirmed: ruled out by what was measured, or open for lack of evidence."""

from dataclasses import dataclass
from typing import Literal

from diagnostics.analysis.stall.departure import EndedInRound
from diagnostics.analysis.stall.endings import Missing
from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.last_seen import LastSeen
from diagnostics.causes.hang._asymmetric import ruled_out
from diagnostics.causes.hang._parts import RECORD, after, last_places
from diagnostics.contract.findings import Finding, Text
from diagnostics.contract.formatting import counted, ranks_spoken, sentence, verb
from diagnostics.evidence.endings import Ending, first_is_unknown

Reason = Literal[
    "doubt", "finished", "no record", "no calls", "silent", "no stack", "failed", "ending unknown", "victims only",
    "other endings",
    "after stall", "raised", "peers vanished", "no dump", "behind", "send or recv", "root unknown", "completed",
    "excluded", "young", "agree", "may be late", "explained", "waits",
]  # fmt: skip
_RULED_OUT: set[Reason] = {"finished", "other endings", "root unknown", "completed", "excluded", "agree", "explained"}
_LAUNCHER_LOG = "the launcher's log, which names exit codes and signals"
_ERROR_FILES = "the ranks' logs or error files: torchrun --log-dir, TORCHELASTIC_ERROR_FILE"
_MISSING = {
    "hang.host_stall": "stacks of the ranks at the stall: dtk watch -- torchrun ..., or py-spy dump",
    "hang.straggler": "a dump after the ranks went on, or heartbeats: record.level=light",
    "hang.p2p_cycle": "send and recv, which gloo's recorder leaves out: stacks, or record.level=light in a run of dtk",
    "hang.device_stall": "NCCL's completion counters: TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    "hang.rank_raised": _ERROR_FILES,
    "hang.rank_oom": _ERROR_FILES,
    "hang.rank_killed": _LAUNCHER_LOG,
    "hang.rank_exited": _LAUNCHER_LOG,
    "hang.rendezvous": "the log of every node's launcher",
    "hang.signature_mismatch": "root and ReduceOp, which flight dumps leave out: record.level=light in a run of dtk",
}
_ENDINGS = ("hang.rank_raised", "hang.rank_oom", "hang.rank_killed", "hang.rank_exited")
_ASYMMETRIC = (
    "hang.collective_mismatch",
    "hang.signature_mismatch",
    "hang.conditional_collective",
    "hang.uneven_iterations",
    "hang.unused_parameters",
)
_OF_VANISHED = ("hang.rank_exited", "hang.rank_killed", "hang.rank_raised")
_OF_SILENT = ("hang.rank_killed", "hang.host_stall", "hang.collective_mismatch", "hang.conditional_collective")


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Facts: why a cause is not confirmed."""

    cause: str
    reason: Reason
    ranks: tuple[int, ...] = ()
    """Whom the reason is about."""
    others: tuple[int, ...] = ()
    count: int = 0
    """Calls compared, or ends known."""
    of: int = 0
    """Ranks seen, or ranks of the job."""
    waited_s: float = 0.0
    ending: Ending | None = None
    running: bool = False
    said: tuple[str, str] = ("", "")
    """What the comparison of calls, or the doubt whether the files belong together, comes to."""
    files: tuple[str, ...] = ()
    last: LastSeen | None = None
    """Where the first rank was seen last."""

    def text(self, finding: Finding) -> Text:
        """Put the reason into words."""
        summary, measured = self._summary(), self._measured()
        if self.reason in _RULED_OUT:
            return Text(summary=summary, measured=measured or summary)
        return Text(summary=summary, missing=self._missing())

    def _summary(self) -> str:
        ranks, who = self.ranks, sentence(ranks_spoken(self.ranks))
        match self.reason:
            case "doubt" | "excluded":
                return self.said[0]
            case "finished":
                return "The run finished."
            case "no record":
                return "No flight-recorder dump and no ring was found."
            case "no calls":
                return (
                    f"{self.of} dumps hold no collective at all: the ranks are outside torch.distributed, or in send "
                    "and recv, which gloo's recorder does not show."
                )
            case "silent":
                return f"{who} left no dump and no error."
            case "no stack":
                return f"{who} left no error and no stack, so how {verb(ranks, 'it', 'they')} ended is not known."
            case "failed":
                return (
                    f"{who} ended with exit code 1 and left no traceback: an error of {verb(ranks, 'its', 'their')} "
                    f"own, or what a peer did to {verb(ranks, 'it', 'them')}."
                )
            case "ending unknown":
                return f"Nothing shows how {ranks_spoken(ranks)} ended."
            case "victims only":
                return (
                    f"Every known ending ({ranks_spoken(ranks)}) is that of a rank that lost a peer or was stopped; "
                    "which rank failed first is not known."
                )
            case "other endings":
                return "No rank ended this way before the others."
            case "after stall" | "raised":
                assert self.ending is not None
                what = f"{who} ended with {self.ending.what}"
                if self.reason == "raised":
                    return f"{what}, and the run went on to its end."
                return f"{what} only after {verb(ranks, 'it', 'they')} had waited for others: the wait came first."
            case "peers vanished":
                return (
                    f"{who} went away{after(self.last, ranks)} while {ranks_spoken(self.others)} still waited, "
                    f"and nothing shows how: {verb(ranks, 'it', 'they')} exited or {verb(ranks, 'was', 'were')} killed."
                )
            case "no dump":
                damaged = f" (damaged: {', '.join(self.files[:4])})" if self.files else ""
                return (
                    f"{sentence(ranks_spoken(self.others))} {verb(self.others, 'waits', 'wait')} for "
                    f"{ranks_spoken(ranks)}, of which there is no dump that can be read{damaged}: killed, stuck, or in "
                    "another call than the peers."
                )
            case "behind":
                return (
                    f"{who} made fewer calls than {verb(ranks, 'its', 'their')} peers, and nothing shows whether the "
                    "job had ended."
                )
            case "send or recv":
                return (
                    f"Every recorded call completed, but gloo records no send or recv: {ranks_spoken(ranks)} may wait "
                    "in one of these."
                )
            case "root unknown":
                return "All ranks issued the same calls and all completed; root and ReduceOp are not in these dumps."
            case "completed":
                return "Nothing is pending: every recorded call completed."
            case "young":
                goes_on = "The run still goes on;" if self.running else "Nothing shows whether the run has ended;"
                return f"{goes_on} its oldest pending call is {self.waited_s:.1f} s old, too young to call it a hang."
            case "agree":
                return "All ranks agree at every position that more than one of them reached."
            case "may be late":
                late = self.cause == "hang.straggler"
                what = "may only be late" if late else "may wait in a send or recv, which gloo's recorder leaves out"
                return f"{who} {what}: nothing is pending there and no stack was left."
            case "explained":
                return "What was confirmed explains the waiting."
            case "waits":
                return f"{who} {verb(ranks, 'waits', 'wait')}, and the evidence does not show for whom."

    def _measured(self) -> str:
        compared = f"0 of {self.count:,} calls differ"
        match self.reason:
            case "finished":
                return f"finished, {self.count:,} calls compared"
            case "other endings":
                return f"0 of {max(self.of, 1)} ranks; {self.count} endings known"
            case "excluded":
                return self.said[1]
            case "root unknown" | "agree":
                return compared
            case "completed":
                return f"0 of {self.of} ranks wait; {compared}"
            case "explained":
                return f"{counted(self.of, 'rank')} waiting, all for what was confirmed"
        return ""

    def _missing(self) -> str:
        match self.reason:
            case "doubt":
                return "the dumps of all ranks of one job, in a folder of their own"
            case "no record":
                return RECORD
            case "no calls":
                return _MISSING.get(self.cause, _MISSING["hang.p2p_cycle"])
            case "young":
                return "a later look at the run"
            case "peers vanished" | "ending unknown":
                return _MISSING[self.cause] if self.cause in _ENDINGS else _LAUNCHER_LOG
            case "no dump":
                return f"the dump, stack or log of {ranks_spoken(self.ranks)}"
        return _MISSING.get(self.cause, RECORD)


def unconfirmed(stall: Stall, cause: str) -> Finding:
    """Why this cause is not confirmed.

    Args:
        stall: in which nothing speaks for the cause.
        cause: its id.
    """
    facts = _facts(stall, cause)
    if facts.reason in _RULED_OUT:
        return Finding(cause=cause, status="ruled_out", facts=facts)
    waits = {"waits": facts.ranks, "peers vanished": facts.others, "no dump": facts.others}.get(facts.reason, ())
    return Finding(
        cause=cause, status="undecided", facts=facts, confidence=0.0, victims=waits, where=last_places(facts.last)
    )


def _facts(stall: Stall, cause: str) -> Unconfirmed:
    job = stall.job
    survey, positions = job.survey, job.survey.positions
    if job.evidence.doubt:
        return Unconfirmed(cause, "doubt", said=(job.evidence.doubt, ""))
    excluded = ruled_out(stall)
    if isinstance(stall.departure, EndedInRound) and stall.departure.over:
        excluded["hang.uneven_iterations"] = _within_round(stall.departure)
    if job.finished():
        own = {rank: end for rank, end in job.endings.items() if end.kind == "raised" and end.frames}
        if cause == "hang.rank_raised" and own:
            return Unconfirmed(cause, "raised", tuple(own), ending=next(iter(own.values())))
        return Unconfirmed(cause, "finished", count=positions)
    missing = stall.missing
    if missing is not None and (facts := _of_missing(stall, missing, cause)):
        return facts
    if cause in _ENDINGS:
        return _of_ending(stall, cause)
    if not survey.ranks:
        return Unconfirmed(cause, "no record")
    if not positions and not job.any_calls():
        return Unconfirmed(cause, "no calls", of=len(survey.ranks))
    waiting = tuple(job.pending_ranks())
    if not waiting:
        if cause in excluded:
            return Unconfirmed(cause, "excluded", said=excluded[cause])
        return _nothing_pending(stall, cause)
    if not job.stands_still():
        return Unconfirmed(cause, "young", waited_s=job.waited_s(), running=bool(job.state))
    if cause == "hang.uneven_iterations" and not stall.confirmed and (unknown := job.without_ending()):
        return Unconfirmed(cause, "ending unknown", tuple(unknown))
    if cause in excluded:
        return Unconfirmed(cause, "excluded", said=excluded[cause])
    if cause in _ASYMMETRIC:
        return Unconfirmed(cause, "agree", count=positions)
    hidden = cause == "hang.p2p_cycle" and any(job.may_be_unrecorded(rank) for rank in stall.unclear)
    if stall.unclear and (cause == "hang.straggler" or hidden):
        return Unconfirmed(cause, "may be late", stall.unclear)
    if stall.confirmed:
        return Unconfirmed(cause, "explained", of=len(waiting))
    return Unconfirmed(cause, "waits", waiting)


def _within_round(ended: EndedInRound) -> tuple[str, str]:
    why = (
        f"Rank {ended.ranks[0]} ended in the middle of a round: after {ended.over} of the {ended.size} calls that its "
        "peers' loop repeats."
    )
    return why, f"{ended.over} of {ended.size} calls of the last round"


def _of_missing(stall: Stall, missing: Missing, cause: str) -> Unconfirmed | None:
    """Ranks that all others wait for and of which nothing is known."""
    if missing.no_dump and missing.abort is None and cause in _OF_SILENT:
        files = tuple(problem.file for problem in stall.job.evidence.problems if problem.kind == "flight")
        return Unconfirmed(cause, "no dump", missing.ranks, missing.waiting, files=files)
    if not missing.no_dump and cause in _OF_VANISHED:
        return Unconfirmed(cause, "peers vanished", missing.ranks, missing.waiting, last=missing.last)
    return None


def _of_ending(stall: Stall, cause: str) -> Unconfirmed:
    job = stall.job
    kind = cause.removeprefix("hang.rank_")
    late = {rank: end for rank, end in job.after_stall.items() if end.kind == kind}
    if late:
        return Unconfirmed(cause, "after stall", tuple(late), ending=next(iter(late.values())))
    if stall.unclear:
        return Unconfirmed(cause, "no stack", stall.unclear)
    silent = tuple(rank for rank in range(job.world()) if job.silent(rank) and rank not in job.endings)
    if silent and job.pending_ranks():
        return Unconfirmed(cause, "silent", silent)
    failed = tuple(rank for rank, end in job.endings.items() if end.kind == "failed")
    if not stall.confirmed:
        if failed:
            return Unconfirmed(cause, "failed", failed)
        if unknown := job.without_ending():
            return Unconfirmed(cause, "ending unknown", tuple(unknown))
        if first_is_unknown(job.endings.values()):
            return Unconfirmed(cause, "victims only", tuple(sorted(job.endings)))
    return Unconfirmed(cause, "other endings", count=len(job.endings), of=job.world())


def _nothing_pending(stall: Stall, cause: str) -> Unconfirmed:
    """Every recorded call completed."""
    job = stall.job
    behind = tuple(job.behind())
    if behind and cause in {"hang.uneven_iterations", "hang.host_stall"}:
        return Unconfirmed(cause, "behind", behind)
    unseen = tuple(rank for rank in sorted(job.survey.ranks) if job.may_be_unrecorded(rank))
    if cause == "hang.p2p_cycle" and unseen:
        return Unconfirmed(cause, "send or recv", unseen)
    if cause == "hang.signature_mismatch":
        return Unconfirmed(cause, "root unknown", count=job.survey.positions)
    return Unconfirmed(cause, "completed", count=job.survey.positions, of=len(job.survey.ranks))
