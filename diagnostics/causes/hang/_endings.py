"""Shared by causes of ranks that ended first: who ended, who waited or made more calls, or why this is undecided."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from diagnostics.analysis.stall.endings import FirstEndings, left_together
from diagnostics.analysis.stall.explain import Stall
from diagnostics.causes.declared import Texts
from diagnostics.causes.hang import _parts
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import CERTAIN, CITED, OPEN, STATED, SUSPECTED, Finding, Remedy, Text, Where
from diagnostics.contract.formatting import UNNAMED, Phrase, file_name
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.endings import Ending, Kind, first_is_unknown
from diagnostics.evidence.readers import ras

TEXTS = Texts(__file__)
LAUNCHER_LOG, ERROR_FILES = TEXTS.phrase("launcher_log"), TEXTS.phrase("error_files")
Change = tuple[str, str]
"""What to change, and why. `{at}` is its line or where to find it; `{native}` is its line or what a core dump shows;
`{what}` is the ending; `{after}` and `{aside}` are text that is added if its line is known."""


def changes_beside(file: str) -> dict[str, Change]:
    """Return the fix for each kind of ending in the table next to a module."""
    return {name: (row["change"], row["why"]) for name, row in table_beside(file)["changes"].items()}


HOST_MEMORY, EXIT_CODE = changes_beside(__file__).values()


class Ended(Struct, frozen=True):
    """The facts of a finding about ranks that ended first."""

    case: FirstEndings
    world: int
    is_dtk_run: bool
    gave_up_at: Where | None
    """Line of a victim that waited for a rank which exited normally; None if not known."""
    words: "Callable[[Finding, Ended], Text]"
    """Puts it into words, with `worded`; each cause has its own."""
    processes: int = 0
    """Number of processes without a rank that the same signal ended; 0 if it was none."""
    doubt: tuple[str, int] = "", 0
    """Row of what leaves open whether the exception ended the process, and how many steps are below it."""

    @property
    def first(self) -> Ending:
        """The first ending, or that of the lowest rank."""
        return self.case.first

    def text(self, finding: Finding) -> Text:
        """Return the text of the finding."""
        return self.words(finding, self)

    def worded(self, finding: Finding, how: Phrase, remedies: tuple[Remedy, ...], more: Phrase | None = None) -> Text:
        """Return who ended, how and where, and who waited for them; `more` replaces the victims."""
        case, gave_up_at = self.case, self.gave_up_at
        alike = [end for end in case.endings if str(end.summary) == str(self.first.summary)]
        others = [end for end in case.endings if end not in alike]
        names = tuple(end.rank for end in alike if end.rank != UNNAMED)
        own = finding.where[0] if finding.where and case.last is None else None
        at = f" ({file_name(own.file)}:{own.line})" if own and own != gave_up_at else _parts.after(case.last, names)
        step = f" in step {finding.step}" if finding.step is not None else ""
        victims = tuple(rank for rank in finding.victims if rank not in names)
        if more is None and victims:
            place = f" at {file_name(gave_up_at.file)}:{gave_up_at.line}" if gave_up_at else ""
            row = "waited" if case.awaited or not self.first.only_exit_code else "stopped"
            more = TEXTS.phrase(row, victims=victims, names=names, place=place)
        rows = ["in_order" if self.first.in_order else "default"]
        rows += [*(["others"] if others else []), *(["more"] if more else []), *([] if names else ["which"])]
        rows += [self.doubt[0]] if self.doubt[0] else []
        local = self.first.local_rank
        row = "local_process" if local is not None else "processes" if self.processes > 1 else "process"
        unnamed = TEXTS.phrase(row, local_rank=local, count=self.processes)
        figures: dict[str, Any] = {"who": names or unnamed, "how": how, "at": at, "step": step, "more": more}
        figures["others"] = [TEXTS.phrase("other", rank=end.rank, what=end.summary) for end in others[:3]]
        world = max(self.world, len(names), 1)
        figures |= {"count": len(names) + len(others) or 1, "world": world, "below": self.doubt[1]}
        return TEXTS(finding, rows, remedies, **figures)

    def remedy(self, finding: Finding, changes: Mapping[str, Change], detail: str = "") -> Remedy:
        """Return the change for a detail, or the one under the empty string, filled in with the facts."""
        return filled(changes.get(detail, changes[""]), self.first.summary, finding.where)


def filled(change: Change, what: str | Phrase, where: tuple[Where, ...]) -> Remedy:
    """Fill in a change; see `Change`."""
    at = f"{where[0].file}:{where[0].line}" if where else ""
    parts = {
        "at": at or str(TEXTS.phrase("in_log")),
        "native": at or str(TEXTS.phrase("in_core_dump")),
        "what": what,
        "after": f", after {at}" if at else "",
        "aside": str(TEXTS.phrase("aside", at=at)) if at else "",
    }
    return Remedy("code", change[0].format_map(parts), change[1].format_map(parts))


def first_to_end(stall: Stall, kind: Kind) -> FirstEndings | None:
    """Return the ranks that ended first in this way."""
    return next((case for case in stall.endings if case.kind == kind), None)


def confirmed(stall: Stall, case: FirstEndings, words: Callable[[Finding, Ended], Text], confidence: float) -> Finding:
    """Return a confirmed finding about ranks that ended first."""
    job, last = stall.job, _parts.last_places(case.last)
    places = tuple(place for end in case.endings[:CITED] for place in _place(end)) or last
    gave_up = _place(case.gave_up) if case.gave_up else ()
    gave_up_at = replace(gave_up[0], does=_parts.says("waits_here")) if gave_up else None
    step = next((end.step for end in case.endings if end.step is not None), None)
    same = (None, "", case.first.signal or "")  # Of these, a launcher's line, with a code, repeats the process's own.
    bare = [e.exit_code is None for e in job.evidence.errors if (e.rank, e.type, e.signal) == same]
    beside = gave_up_at and gave_up_at.rank not in {place.rank for place in places}
    is_told = case.victims or any(e.exit_code is not None or e.signal for e in job.evidence.errors)
    caught = all(end.caught for end in case.endings)
    below = 0 if is_told and not caught else min(end.below for end in case.endings)
    followed = not is_told and all(end.followed for end in case.endings)
    most = SUSPECTED if below and caught else OPEN if below or followed else CERTAIN if case.later else STATED
    doubt = "below" if below else "followed" if followed else "", below
    return _parts.confirmed(
        job,
        Ended(case, job.world(), job.evidence.is_dtk, gave_up_at, words, max(map(bare.count, (True, False))), doubt),
        min(confidence, most),
        evidence=[end.evidence for end in case.endings[:CITED]],
        seen={last[0].rank: str(last[0].does)} if last and last[0].rank is not None else {},
        ranks=case.culprits,
        victims=case.victims,
        step=job.step_of(case.endings[0].rank) if step is None and last else step,
        where=(*places, *((gave_up_at,) if gave_up_at and beside else ())),
    )


def _place(ending: Ending) -> tuple[Where, ...]:
    rank = ending.rank if ending.rank != UNNAMED else None
    inner = next((frame for frame in ending.frames[:1] if "/torch/" not in frame.file), None)
    return _parts.where(rank, own_line(ending.frames) or inner, ending.summary)


def unconfirmed(stall: Stall, kind: Kind, missing: Phrase, **may_be: bool) -> Finding:
    """Return why no rank is known to have ended this way before the others."""
    if answer := _parts.undecidable(stall, missing, **may_be):
        return answer
    job = stall.job
    if late := {rank: end.summary for rank, end in job.after_stall.items() if end.kind == kind}:
        return _parts.left_open(TEXTS.phrase("late", who=late, what=next(iter(late.values()))), missing)
    codes = {rank: end.summary for rank, end in job.endings.items() if end.kind == "exited"}
    if codes and left_together(job, codes):
        return _parts.left_open(TEXTS.phrase("together", who=codes, what=next(iter(codes.values()))), ERROR_FILES)
    if stall.unexplained:
        return _parts.left_open(TEXTS.phrase("unclear", who=stall.unexplained), missing, basis=stall.unexplained_basis)
    silent = sorted({*range(job.world())} - job.survey.ranks.keys() - job.endings.keys()) if job.waits.of_rank else []
    if silent := silent or ras.unanswered(job.evidence):
        return _parts.left_open(TEXTS.phrase("silent", who=silent), missing)
    if job.evidence.errors and not job.endings:
        text = TEXTS.phrase("unnamed_exit", what=job.evidence.errors[0].message)
        return _parts.left_open(text, missing, basis="waiting")
    if failed := [rank for rank, end in job.endings.items() if end.kind == "failed"]:
        return _parts.left_open(TEXTS.phrase("failed", who=failed), missing, basis="waiting")
    if unknown := job.without_ending():
        return _parts.ending_unknown(missing, unknown)
    if first_is_unknown(job.endings.values()):
        row = "unnamed_peer" if UNNAMED in job.endings else "only_peers"
        return _parts.left_open(TEXTS.phrase(row, who=sorted(job.endings)), missing, basis="waiting")
    return TEXTS.ruled_out(world=max(job.world(), 1), count=len(job.endings))
