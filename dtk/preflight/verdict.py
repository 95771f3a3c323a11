"""From the records of all ranks to the verdict: they finish, or a report as of `dtk diagnose` on where they wait."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from msgspec import structs

from diagnostics.analysis.divergence.find import Divergence
from diagnostics.analysis.divergence.single_calls import misfit as misfit_divergence
from diagnostics.analysis.divergence.whole_programs import Program, compare_programs
from diagnostics.analysis.pairwise import Misfit
from diagnostics.analysis.stall.explain import explain as explain_stall
from diagnostics.analysis.vote import OF_JOB, count_votes
from diagnostics.causes.registry import collect
from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import file_name
from diagnostics.contract.mesh import Mesh
from diagnostics.diagnose import Facts, conclude, decide
from diagnostics.evidence.calls import own_line
from diagnostics.evidence.model import Evidence
from diagnostics.evidence.ring.format import format_ranks
from diagnostics.report.model import Report
from diagnostics.tree.load import built_in
from dtk.preflight.calls import End, Record
from dtk.preflight.evidence import evidence, whole_history
from dtk.preflight.match import Outcome, RankProgress, match

_TEXTS: dict[str, str] = table_beside(__file__)["texts"]
MOST_PLACES = 4  # Maximum number of places that the answer names.


class Waiting(NamedTuple):
    """Where a rank waits."""

    call: str
    """The call, or what a rank does that is stuck outside any."""
    place: str = ""
    """`file:line` of the call."""

    def __str__(self) -> str:
        """Return `all_reduce at train.py:12`."""
        return f"{self.call} at {self.place}" if self.place else self.call


NOBODY_WAITS = Waiting("")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a preflight."""

    outcome: Outcome
    report: Report | None
    """The report; None if every rank finishes."""
    stands: str = ""
    """The first place where ranks are stuck, in one line."""
    waiting: Mapping[int, Waiting] = field(default_factory=dict)
    """Only ranks that wait or are stalled."""

    @property
    def ends(self) -> bool:
        """Whether every rank would finish."""
        return self.report is None

    @property
    def hangs(self) -> bool:
        """Whether a rank would wait forever; if not, the ranks that do not finish fail."""
        return bool(self.waiting)

    def waits(self, without: int) -> Waiting:
        """Return where most of the other ranks wait."""
        sides = count_votes(OF_JOB, 0, {rank: place for rank, place in self.waiting.items() if rank != without}).sides
        return self.waiting[sides[0][0]] if sides else NOBODY_WAITS


def judge(
    records: Mapping[int, Record],
    plain: Mapping[str, object],
    source: str,
    *,
    mesh: Mesh | None = None,
    made_up: bool = False,
    steps: int = 0,
) -> Verdict:
    """Match the calls of all ranks, and explain why they do not all finish.

    `plain` is the job's configuration, empty for a script, which has no mesh. With `made_up` the code may have read
    placeholder results of collectives. `steps` is the requested number; 0 = unknown.
    """
    outcome = match(records.values())
    failed = any(record.end.kind not in ("finished", "exited") for record in records.values())
    if outcome.ends and not failed:
        return Verdict(outcome, None)
    if outcome.ends:  # All calls of all ranks are complete, but one of the ranks failed.
        finished = {rank: RankProgress(len(record.issued()), None) for rank, record in records.items()}
        outcome = dataclasses.replace(outcome, progress=finished)
    recorded = evidence(records, outcome.progress, plain, mesh)
    report = explain(recorded, divergence_of(records, outcome.misfit, steps), source)
    waiting: dict[int, Waiting] = {}
    stands: dict[int, str] = {}
    for rank, progress in sorted(outcome.progress.items()):
        record = records[rank]
        if progress.pending is not None:
            entry = record.issued()[progress.pending]
            call, place = entry.user_op or entry.op, entry.site.partition("\t")[0]
            waiting[rank] = Waiting(call, place)
            text = f"in {Waiting(call, file_name(place))}"
        else:
            text = _end(record.end)
            if record.end.kind == "stalled":
                waiting[rank] = Waiting(text)
        stands[rank] = text
    most = count_votes(OF_JOB, 0, stands).sides[:MOST_PLACES]
    parts = [f"{'rank' if len(of) == 1 else 'ranks'} {format_ranks(of)} {stands[of[0]]}" for of in most]
    own = ["hangs" if waiting else "fails", *(["made_up"] if made_up else [])]
    notes = (*(_TEXTS[row] for row in own), *report.notes)
    report = structs.replace(report, run_folder=None, notes=notes)
    return Verdict(outcome, report, "; ".join(parts), waiting)


def _end(end: End) -> str:
    """Describe how a rank ended that waits for none; an exception with the user's own line, if it passed one."""
    if end.error is not None:
        frames = end.error.frames
        frame = own_line(frames) or next(iter(frames), None)
        return f"raised {end.error.type}" + (f" at {file_name(frame.file)}:{frame.line}" if frame else "")
    if end.kind == "killed":
        return f"was killed by {end.signal}"
    return "is stuck outside any call" if end.kind == "stalled" else "ended"


def explain(evidence: Evidence, divergence: Divergence | None, source: str) -> Report:
    """Return the report on stuck ranks.

    `evidence` is the stuck state (`preflight.evidence`). Without a divergence of programs, calls up to the stall count.
    """
    registry = collect()
    evidence.problems.extend(registry.problems)
    instead: dict[Facts, Facts] = {explain_stall: partial(explain_stall, divergence=divergence)}
    findings, measures = decide(registry, evidence, lambda _: None, instead)
    return conclude(evidence, built_in(), findings, measures, source)


def divergence_of(records: Mapping[int, Record], misfit: Misfit[int] | None, steps: int = 0) -> Divergence | None:
    """Return how the ranks' whole programs differ; None if a rank failed or the calls do not show it."""
    if misfit is not None:
        histories = (whole_history(records[rank]) for rank in (misfit.sender, misfit.receiver))
        sent, taken = (calls[number] for calls, number in zip(histories, misfit.calls, strict=True))
        return misfit_divergence(structs.replace(misfit, calls=(sent, taken)))  # type: ignore[arg-type]
    if any(record.end.kind not in ("finished", "exited") or record.end.code for record in records.values()):
        return None
    alike: dict[tuple[object, ...], list[Record]] = {}
    for record in records.values():
        labels = tuple(record.label(index) for index in range(len(record.groups)))
        alike.setdefault((id(record.program), labels, record.rounds), []).append(record)
    programs = []
    for first, *others in alike.values():
        calls = tuple(call for call in whole_history(first) if not call.p2p)
        ranks_of = {group.name: group.ranks for group in reversed(first.groups)}
        members = {call.key: ranks_of[call.key.name] for call in calls}
        programs.append(Program((first.rank, *(other.rank for other in others)), calls, members, first.rounds))
    return compare_programs(programs, steps)
