"""The words of findings: places, files, remedies. Knows no evidence but what it is handed."""

from collections.abc import Iterable

from diagnostics.analysis.histories.align import Survey
from diagnostics.contract.findings import EvidenceItem, Finding, Group, Remedy, Where
from diagnostics.contract.formatting import file_name as short
from diagnostics.contract.formatting import ranks_spoken, sentence, verb
from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.model import Evidence
from diagnostics.settings import planted

__all__ = ["sentence", "short", "verb"]
_FILES_SHOWN = 6
RECORD = (
    "record.level=light (any job: dtk watch -- torchrun ...; under NCCL also TORCH_FR_BUFFER_SIZE=2000 "
    "TORCH_FR_DUMP_TEMP_FILE=/tmp/flight_rank_)"
)
"""What records the calls of all ranks."""
ranks = ranks_spoken
"""`rank 2`, `ranks 0, 1 and 3`, `ranks 0-6 and 9`"""


def call(found: Call, position: bool = True) -> str:
    """`all_reduce [8] float32 (#2, train.py:17)`."""
    return found.cited(position)


def where(rank: int, found: Call | None, does: str | None = None) -> list[Where]:
    """The user's line of a call; nothing when stacks were not recorded."""
    if found is None or found.site is None:
        return []
    site = found.site
    return [Where(rank, site.file, site.line, site.function, does or found.text)]


def label(key: GroupKey) -> str:
    """A group's description, else its name."""
    return key.label


def group(survey: Survey, key: GroupKey) -> Group:
    """The group as a report shows it."""
    return Group(name=key.name, ranks=survey.members(key), desc="" if key.desc == "undefined" else key.desc)


def flight(survey: Survey, details: dict[int, str]) -> tuple[EvidenceItem, ...]:
    """The dumps of these ranks, with what is to be seen in each."""
    items = []
    for rank in sorted(details)[:_FILES_SHOWN]:
        record = survey.ranks.get(rank)
        for file in record.files[:1] if record else ():
            items.append(EvidenceItem("flight", file, f"rank {rank}: {details[rank]}"))
    return tuple(items)


def remedies(evidence: Evidence, change: str, why: str, override: tuple[str, str] | None = None) -> tuple[Remedy, ...]:
    """The change at file:line; for a run of dtk an override before it, where one mends it."""
    found = list(planted(evidence))
    if evidence.run is not None and override is not None:
        found.append(Remedy("override", *override))
    return (*found, Remedy("code", change, why))


def ruled_out(cause: str, summary: str, measured: str = "") -> Finding:
    """A cause that the evidence excludes."""
    return Finding(cause=cause, status="ruled_out", summary=summary, measured=measured or summary)


def undecided(cause: str, summary: str, missing: str, victims: Iterable[int] = ()) -> Finding:
    """A cause that the evidence cannot settle, and what would."""
    return Finding(
        cause=cause,
        status="undecided",
        summary=summary,
        missing=missing,
        confidence=0.0,
        victims=tuple(sorted(victims)),
    )
