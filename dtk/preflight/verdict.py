"""From the records of all ranks to the verdict: they end, or the report of `dtk diagnose` on where they stand."""

import dataclasses
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnostics.evidence.calls import is_library
from diagnostics.evidence.ring_format import format_ranks
from diagnostics.report.model import Report
from dtk.preflight import evidence
from dtk.preflight.calls import End, Record
from dtk.preflight.explain import explain
from dtk.preflight.match import Outcome, Standing, first_points, match
from dtk.preflight.parting import Parting, part

NOTE = "This is a preflight: every rank was simulated in this process, nothing was launched. The job would hang here."


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a preflight found."""

    outcome: Outcome
    report: Report | None
    """None when every rank comes to its end."""
    stands: str = ""
    """The first point where ranks stand, in one line."""
    look: str = ""
    """`file:line` to look at first."""

    @property
    def ends(self) -> bool:
        """Whether the job would come to its end."""
        return self.report is None


def judge(records: Mapping[int, Record], plain: Mapping[str, object], source: str) -> Verdict:
    """Play the ranks against each other, and explain it when they do not all end.

    Args:
        records: all ranks of the job.
        plain: its configuration; empty for a script.
        source: how the report calls it.
    """
    outcome = match(records.values())
    failed = [record for record in records.values() if record.end.kind not in ("finished", "exited")]
    if outcome.ends and not failed:
        return Verdict(outcome, None)
    if outcome.ends:
        outcome = dataclasses.replace(outcome, standings=_all_through(records))
    with tempfile.TemporaryDirectory(prefix="dtk-preflight-") as folder:
        evidence.write(Path(folder), records, outcome, plain)
        parting = part(records)
        report = explain(Path(folder), records, parting, source)
    report = dataclasses.replace(report, run_folder=None, notes=(NOTE, *report.notes))
    return Verdict(outcome, report, _stands(records, outcome), _look(report, parting))


def _look(report: Report, parting: Parting | None) -> str:
    """The line of the call too many or too few, as far as it is known; else the first that the report names."""
    if parting is not None:
        site = parting.usual_site if parting.kind in ("skipped", "bucket") else parting.odd_site
        return site.partition("\t")[0]
    place = next((one for root in report.root_causes[:1] for one in root.where if one.file), None)
    return f"{place.file}:{place.line}" if place is not None else ""


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
        elif end.kind == "raised":
            where = f"raised {end.error['type']} at {_short(_place(end))}"
        else:
            where = {"killed": f"was killed by {end.signal}", "stalled": "stands still outside any call"}.get(
                end.kind, "ended"
            )
        places.setdefault(where, []).append(rank)
    parts = sorted(places.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{_ranks(ranks)} {where}" for where, ranks in parts[:4])


def _place(end: End) -> str:
    """Where the exception came from, the user's own line if it went through one."""
    frames = [line for line in str(end.error.get("traceback", "")).splitlines() if line.startswith('  File "')]
    for line in reversed(frames):
        file, _, rest = line.removeprefix('  File "').partition('", line ')
        if not is_library(file):
            return f"{file}:{rest.partition(',')[0]}"
    return f"{end.error.get('file')}:{end.error.get('line')}"


def _short(site: str) -> str:
    place = site.partition("\t")[0]
    file, _, line = place.rpartition(":")
    return f"{Path(file).name}:{line}"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ranks(tuple(ranks))}"
