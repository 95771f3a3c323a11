"""The detector of all hang causes: runs them in order of what explains what, and decides those that found nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from diagnostics.analysis.divergence import Divergence
from diagnostics.analysis.job_state import build
from diagnostics.contract.findings import Detection, Finding
from diagnostics.contract.formatting import counted
from diagnostics.detectors.hang import say
from diagnostics.detectors.hang.context import Context
from diagnostics.detectors.hang.disagree import by_size, divergence
from diagnostics.detectors.hang.ended import gone
from diagnostics.detectors.hang.timeline import timeline
from diagnostics.detectors.hang.unrecorded import by_place, watchdog
from diagnostics.detectors.hang.waiting import agree, circular, idle, meeting, straggler
from diagnostics.evidence.model import Evidence

CAUSES = (
    "hang.collective_mismatch",
    "hang.signature_mismatch",
    "hang.conditional_collective",
    "hang.uneven_iterations",
    "hang.unused_parameters",
    "hang.rank_raised",
    "hang.rank_oom",
    "hang.rank_killed",
    "hang.rank_exited",
    "hang.host_stall",
    "hang.device_stall",
    "hang.straggler",
    "hang.group_order",
    "hang.p2p_cycle",
    "hang.network",
    "hang.rendezvous",
)
ASSUMED_CONFIDENCE = 0.65
_BY_GROUP = {"hang.conditional_collective", "hang.group_order", "hang.host_stall"}
Known = Callable[[Context], Divergence | None]
_ASYMMETRIC = frozenset(CAUSES[:5])
"""The ranks disagree about the sequence of collectives."""
_ONE_JOB = "the dumps of all ranks of one job, in a folder of their own"
_MISSING = {
    "hang.host_stall": "stacks of the ranks at the stall: dtk watch -- torchrun ..., or py-spy dump",
    "hang.straggler": "a dump after the ranks went on, or heartbeats: record.level=light",
    "hang.p2p_cycle": "send and recv, which gloo's recorder leaves out: stacks, or record.level=light in a run of dtk",
    "hang.device_stall": "NCCL's completion counters: TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    "hang.rank_raised": "the ranks' logs or error files: torchrun --log-dir, TORCHELASTIC_ERROR_FILE",
    "hang.rank_oom": "the ranks' logs or error files: torchrun --log-dir, TORCHELASTIC_ERROR_FILE",
    "hang.rank_killed": "the launcher's log, which names exit codes and signals",
    "hang.rank_exited": "the launcher's log, which names exit codes and signals",
    "hang.rendezvous": "the log of every node's launcher",
    "hang.signature_mismatch": "root and ReduceOp, which flight dumps leave out: record.level=light in a run of dtk",
}


class HangDetector:
    """Decides every `hang.*` cause."""

    name: str = "hang"
    causes: tuple[str, ...] = CAUSES

    def __init__(self, known: Known | None = None) -> None:
        self.known = known
        """Finds the divergence of a job whose ranks' calls are known to their very end, as in a simulation."""

    def detect(self, evidence: Evidence) -> Detection:
        """Decide; see `Detector`. Files that cannot be read become problems of the evidence."""
        state = build(evidence)
        context = Context(state.evidence, state.reading, state.waits, state.endings)
        found = _merge(_found(context, self.known))
        decided = {finding.cause for finding in found}
        found += [_rest(context, cause, found) for cause in CAUSES if cause not in decided]
        measures = _measures(context, found)
        return Detection(sorted(found, key=lambda finding: (CAUSES.index(finding.cause), finding.ranks)), measures)


def _found(context: Context, known: Known | None) -> list[Finding]:
    """What every family of causes finds, in order of what explains what."""
    if context.evidence.doubt:
        return gone.find(context)  # Exceptions and signals need no comparison.
    found: list[Finding] = []
    if not context.finished():
        found += divergence.find(context, known(context) if known else None)
        found = _merge(found + by_size.find(context))
        found += agree.rooted(context)
        found += gone.find(context)
        found += watchdog.find(context)
        found += circular.find(context) if context.stands_still() else []
        found += idle.find(context)
        found += by_place.find(context) if not any(one.status == "confirmed" for one in found) else []
        found += agree.network(context)
        found += meeting.find(context) or agree.rendezvous(context)
    return _provided(context, found) + straggler.find(context)


def _provided(context: Context, found: list[Finding]) -> list[Finding]:
    """Less sure where it rests on who is in a group that no file names the members of."""
    lost = context.waits.assumed
    if not lost:
        return found
    are = say.verb(lost, "it is", "they are")
    proviso = f" {say.sentence(say.ranks(lost))} left no dump: this holds if {are} not in that group."
    return [
        replace(one, confidence=min(one.confidence, ASSUMED_CONFIDENCE), summary=f"{one.summary}{proviso}")
        if one.status == "confirmed" and one.cause in _BY_GROUP
        else one
        for one in found
    ]


def _merge(found: list[Finding]) -> list[Finding]:
    """One finding for each cause and set of ranks: the surer one. A tie that another one settles is left out."""
    best: dict[tuple[str, tuple[int, ...]], Finding] = {}
    for finding in found:
        key = (finding.cause, finding.ranks)
        if key not in best or finding.confidence > best[key].confidence:
            best[key] = finding
    return [one for one in best.values() if not any(_settles(other, one) for other in best.values())]


def _settles(one: Finding, tie: Finding) -> bool:
    """Whether it tells which of the ranks of a tie, of the same cause, is to blame."""
    told = one.status == tie.status == "confirmed" and one.cause == tie.cause and one.confidence >= tie.confidence
    return told and set(one.ranks) < set(tie.ranks) and bool(one.ranks) and not tie.victims


def _measures(context: Context, found: list[Finding]) -> dict[str, Any]:
    survey = context.survey
    measures: dict[str, Any] = {
        "ranks": len(survey.ranks),
        "world_size": context.world(),
        "groups": len(survey.groups),
        "calls_compared": survey.positions,
        "ranks_waiting": len(context.pending_ranks()),
    }
    drawn = timeline(context, found)
    if drawn is not None:
        measures["timeline"] = drawn
    return {"hang": measures}


def _rest(context: Context, cause: str, found: list[Finding]) -> Finding:
    """A cause that nothing was found for: excluded by what was measured, or open for lack of it."""
    survey = context.survey
    if context.evidence.doubt:
        return say.undecided(cause, context.evidence.doubt, _ONE_JOB)
    if context.finished():
        return say.ruled_out(cause, "The run finished.", f"finished, {survey.positions:,} calls compared")
    if cause in {"hang.rank_raised", "hang.rank_oom", "hang.rank_killed", "hang.rank_exited"}:
        return _ends(context, cause, found)
    if not survey.ranks:
        return say.undecided(cause, "No flight-recorder dump and no ring was found.", say.RECORD)
    if not survey.positions and not any(record.lines or record.p2p for record in survey.ranks.values()):
        return say.undecided(
            cause,
            f"{len(survey.ranks)} dumps hold no collective at all: the ranks are outside torch.distributed, "
            "or in send and recv, "
            "which gloo's recorder does not show.",
            _MISSING.get(cause, _MISSING["hang.p2p_cycle"]),
        )
    return _measured(context, cause, found)


def _ends(context: Context, cause: str, found: list[Finding]) -> Finding:
    ranks = _unclear(found)
    if ranks:
        return say.undecided(
            cause,
            f"{say.sentence(say.ranks(ranks))} left no error and no stack, so this cannot be told.",
            _MISSING[cause],
        )
    silent = [rank for rank in range(context.world()) if context.silent(rank) and rank not in context.ends]
    if silent and cause not in {finding.cause for finding in found} and context.pending_ranks() != []:
        return say.undecided(cause, f"{say.sentence(say.ranks(silent))} left no dump and no error.", _MISSING[cause])
    vague = [rank for rank, end in context.ends.items() if end.kind == "failed"]
    if vague and not any(one.status == "confirmed" for one in found):
        return say.undecided(
            cause,
            f"{say.sentence(say.ranks(vague))} ended with exit code 1 and left no traceback: an error of "
            f"{say.verb(vague, 'its', 'their')} own, or what a peer did to {say.verb(vague, 'it', 'them')}.",
            _MISSING[cause],
        )
    unknown = context.without_ending()
    if unknown and not any(one.status == "confirmed" for one in found):
        return say.undecided(cause, f"Nothing says how {say.ranks(unknown)} ended.", _MISSING[cause])
    errors = len(context.ends)
    return say.ruled_out(
        cause, "No rank ended this way before the others.", f"0 of {max(context.world(), 1)} ranks; {errors} ends known"
    )


def _nothing_pending(context: Context, cause: str, compared: str) -> Finding:
    """Every recorded call completed."""
    ranks = context.survey.ranks
    apart = context.behind()
    if apart and cause in {"hang.uneven_iterations", "hang.host_stall"}:
        return say.undecided(
            cause,
            f"{say.sentence(say.ranks(apart))} made fewer calls than {say.verb(apart, 'its', 'their')} peers, and "
            "nothing says whether the job had ended.",
            _MISSING.get(cause, say.RECORD),
        )
    unseen = [rank for rank in sorted(ranks) if context.may_be_unrecorded(rank)]
    if cause == "hang.p2p_cycle" and unseen:
        return say.undecided(
            cause,
            f"Every recorded call completed, but gloo records no send or recv: {say.ranks(unseen)} may wait in "
            "one of these.",
            _MISSING[cause],
        )
    if cause == "hang.signature_mismatch":
        return say.ruled_out(
            cause,
            "All ranks issued the same calls and all completed; root and ReduceOp are not in these dumps.",
            compared,
        )
    return say.ruled_out(
        cause,
        "Nothing is pending: every recorded call completed.",
        f"0 of {len(ranks)} ranks wait; {compared}",
    )


def _unclear(found: list[Finding]) -> tuple[int, ...]:
    """Ranks that never came, without a stack that says why."""
    return tuple(rank for one in found if one.cause == "hang.host_stall" and one.confidence < 0.9 for rank in one.ranks)


def _may_be(cause: str, ranks: tuple[int, ...]) -> Finding:
    late = cause == "hang.straggler"
    what = "may only be late" if late else "may wait in a send or recv, which gloo's recorder leaves out"
    summary = f"{say.sentence(say.ranks(ranks))} {what}: nothing is pending there and no stack was left."
    return say.undecided(cause, summary, _MISSING[cause])


def _measured(context: Context, cause: str, found: list[Finding]) -> Finding:
    compared = f"0 of {context.survey.positions:,} calls differ"
    waiting = len(context.pending_ranks())
    explained = any(finding.status == "confirmed" and finding.confidence >= 0.5 for finding in found)
    if waiting == 0 and cause in context.siblings:
        return say.ruled_out(cause, *context.siblings[cause])
    if waiting == 0:
        return _nothing_pending(context, cause, compared)
    if not context.stands_still():
        waited = f"{context.waited_s():.1f} s"
        goes_on = "The run still goes on;" if context.state else "Nothing says whether the run has ended;"
        return say.undecided(
            cause,
            f"{goes_on} its oldest pending call is {waited} old, too young to call it a hang.",
            "a later look at the run",
        )
    unknown = context.without_ending()
    if cause == "hang.uneven_iterations" and unknown and not explained:
        return say.undecided(cause, f"Nothing says how {say.ranks(unknown)} ended.", _MISSING["hang.rank_exited"])
    if cause in _ASYMMETRIC:
        agree = "All ranks agree at every position that more than one of them reached."
        return say.ruled_out(cause, *context.siblings.get(cause, (agree, compared)))
    unclear = _unclear(found)
    hidden = cause == "hang.p2p_cycle" and any(context.may_be_unrecorded(rank) for rank in unclear)
    if unclear and (cause == "hang.straggler" or hidden):
        return _may_be(cause, unclear)
    if explained:
        return say.ruled_out(
            cause,
            "What was confirmed explains the waiting.",
            f"{counted(waiting, 'rank')} waiting, all for what was confirmed",
        )
    return say.undecided(
        cause,
        f"{say.sentence(say.ranks(context.pending_ranks()))} "
        f"{say.verb(context.pending_ranks(), 'waits', 'wait')}, and the evidence does not say for whom.",
        _MISSING.get(cause, say.RECORD),
        context.pending_ranks(),
    )
