"""From the records of all ranks to the verdict: they end, or the report of `dtk diagnose` on where they stand."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diagnostics.evidence.calls import is_library
from diagnostics.evidence.model import RankError
from diagnostics.evidence.ring.groups import format_ranks
from diagnostics.report.model import Report
from dtk.preflight.calls import Record
from dtk.preflight.evidence import evidence
from dtk.preflight.explain import explain
from dtk.preflight.match import Outcome, Standing, first_points, match
from dtk.preflight.parting import part

NOTE = "This is a preflight: every rank was simulated on this machine, nothing was launched. The job would {} here."
MADE_UP = (
    "Results of some collectives were made up (tensors above 256 MiB, receives from any rank, ranks by classes or more "
    "than 64): if the code decides by their values, this is undecided. Try fewer ranks or a smaller model."
)

TAB = "\t"


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
        """Whether the job would come to its end."""
        return self.report is None

    @property
    def hangs(self) -> bool:
        """Whether a rank would wait for ever; else those that do not end fail."""
        return bool(self.waiting)

    def waits(self, without: int) -> str:
        """Where most ranks wait but for one of them."""
        places = Counter(place for rank, place in self.waiting.items() if rank != without)
        return places.most_common(1)[0][0] if places else ""


def judge(records: Mapping[int, Record], plain: Mapping[str, object], source: str, *, made_up: bool = False) -> Verdict:
    """Play the ranks against each other, and explain it when they do not all end.

    Args:
        records: all ranks of the job.
        plain: its configuration; empty for a script.
        source: how the report calls it.
        made_up: whether results of collectives were made up that the code may have read.
    """
    outcome = match(records.values())
    failed = [record for record in records.values() if record.end.kind not in ("finished", "exited")]
    if outcome.ends and not failed:
        return Verdict(outcome, None)
    if outcome.ends:
        outcome = dataclasses.replace(outcome, standings=_all_through(records))
    left = evidence(records, outcome.standings, plain)
    report = explain(left, records, outcome.misfit or part(records), source)
    waiting = _waiting(records, outcome)
    notes = (NOTE.format("hang" if waiting else "fail"), *((MADE_UP,) if made_up else ()), *report.notes)
    report = dataclasses.replace(report, run_folder=None, notes=notes)
    return Verdict(outcome, report, _stands(records, outcome), waiting)


def _waiting(records: Mapping[int, Record], outcome: Outcome) -> dict[int, str]:
    found = {rank: "stands still outside any call" for rank, one in records.items() if one.end.kind == "stalled"}
    for rank, entry in first_points(records, outcome).items():
        found[rank] = f"{entry.user_op or entry.op} at {entry.site.partition(TAB)[0]}"
    return found


def _all_through(records: Mapping[int, Record]) -> dict[int, Standing]:
    """Every call of every rank is complete, and one of them failed all the same."""
    return {
        rank: Standing(sum(event >= 0 for event in record.program.steps()), None) for rank, record in records.items()
    }


def _stands(records: Mapping[int, Record], outcome: Outcome) -> str:
    """`ranks 0-2 in all_reduce at train.py:12; rank 3 raised ValueError`, the largest part first."""
    places: dict[str, list[int]] = {}
    points = first_points(records, outcome)
    for rank in sorted(outcome.standings):
        end = records[rank].end
        if rank in points:
            entry = points[rank]
            where = f"in {entry.user_op or entry.op} at {_short(entry.site)}"
        elif end.error is not None:
            where = _raised(end.error)
        else:
            where = {"killed": f"was killed by {end.signal}", "stalled": "stands still outside any call"}.get(
                end.kind, "ended"
            )
        places.setdefault(where, []).append(rank)
    parts = sorted(places.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{_ranks(ranks)} {where}" for where, ranks in parts[:4])


def _raised(error: RankError) -> str:
    """The exception and where it came from, the user's own line if it went through one."""
    frame = next((one for one in error.frames if not is_library(one.file)), next(iter(error.frames), None))
    return f"raised {error.type}" + (f" at {Path(frame.file).name}:{frame.line}" if frame else "")


def _short(site: str) -> str:
    place = site.partition("\t")[0]
    file, _, line = place.rpartition(":")
    return f"{Path(file).name}:{line}"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ranks(tuple(ranks))}"
