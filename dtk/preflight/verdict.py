"""From the records of all ranks to the verdict: they finish, or the report of `dtk diagnose` on where they wait."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diagnostics.evidence.calls import is_library
from diagnostics.evidence.ring.groups import format_ranks
from diagnostics.report.model import Report
from dtk.preflight.calls import End, Record
from dtk.preflight.evidence import evidence
from dtk.preflight.explain import divergence_of, explain
from dtk.preflight.match import Outcome, Standing, match

NOTE = "This is a preflight: every rank was simulated on this machine, nothing was launched. The job would {} here."
MADE_UP = (
    "Results of some collectives were made up (tensors above 256 MiB, receives from any rank, ranks by classes or more "
    "than 64): if the code decides by their values, this is undecided. Try fewer ranks or a smaller model."
)
MOST_PLACES = 4
"""Places at which ranks stand that the answer names."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a preflight found."""

    outcome: Outcome
    report: Report | None
    """None when every rank finishes."""
    stands: str = ""
    """The first point where ranks stand, in one line."""
    waiting: Mapping[int, str] = field(default_factory=dict)
    """Rank -> call and `file:line` at which it waits, or that it stands still; those that do neither are left out."""

    @property
    def ends(self) -> bool:
        """Whether every rank would finish."""
        return self.report is None

    @property
    def hangs(self) -> bool:
        """Whether a rank would wait for ever; if not, those that do not finish fail."""
        return bool(self.waiting)

    def waits(self, without: int) -> str:
        """Return where most of the other ranks wait."""
        places = Counter(place for rank, place in self.waiting.items() if rank != without)
        return places.most_common(1)[0][0] if places else ""


def judge(records: Mapping[int, Record], plain: Mapping[str, object], source: str, *, made_up: bool = False) -> Verdict:
    """Match the calls of all ranks, and explain why they do not all finish.

    Args:
        records: all ranks of the job.
        plain: its configuration; empty for a script.
        source: how the report calls it.
        made_up: whether results of collectives were made up that the code may have read.
    """
    outcome = match(records.values())
    failed = any(record.end.kind not in ("finished", "exited") for record in records.values())
    if outcome.ends and not failed:
        return Verdict(outcome, None)
    if outcome.ends:  # Every call of every rank is complete, and one of the ranks failed all the same.
        standings = {rank: Standing(len(record.issued()), None) for rank, record in records.items()}
        outcome = dataclasses.replace(outcome, standings=standings)
    left = evidence(records, outcome.standings, plain)
    report = explain(left, divergence_of(records, outcome.misfit), source)
    waiting: dict[int, str] = {}
    stands: dict[str, list[int]] = {}
    for rank, standing in sorted(outcome.standings.items()):
        record = records[rank]
        if standing.pending is not None:
            entry = record.issued()[standing.pending]
            call, place = entry.user_op or entry.op, entry.site.partition("\t")[0]
            waiting[rank] = f"{call} at {place}"
            text = f"in {call} at {place.rpartition('/')[2]}"
        else:
            text = _end(record.end)
            if record.end.kind == "stalled":
                waiting[rank] = text
        stands.setdefault(text, []).append(rank)
    most = sorted(stands.items(), key=lambda item: -len(item[1]))[:MOST_PLACES]
    parts = [f"{'rank' if len(of) == 1 else 'ranks'} {format_ranks(tuple(of))} {text}" for text, of in most]
    notes = (NOTE.format("hang" if waiting else "fail"), *((MADE_UP,) if made_up else ()), *report.notes)
    report = dataclasses.replace(report, run_folder=None, notes=notes)
    return Verdict(outcome, report, "; ".join(parts), waiting)


def _end(end: End) -> str:
    """How a rank ended that waits for nobody; of an exception the user's own line, if it went through one."""
    if end.error is not None:
        frames = end.error.frames
        frame = next((frame for frame in frames if not is_library(frame.file)), next(iter(frames), None))
        return f"raised {end.error.type}" + (f" at {Path(frame.file).name}:{frame.line}" if frame else "")
    if end.kind == "killed":
        return f"was killed by {end.signal}"
    return "stands still outside any call" if end.kind == "stalled" else "ended"
