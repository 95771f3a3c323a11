"""Parts of findings about hangs: source lines, groups, evidence from dumps. Made of what it is handed."""

from collections.abc import Mapping

from diagnostics.analysis.histories.align import Survey
from diagnostics.contract.findings import EvidenceItem, Group, Where
from diagnostics.evidence.calls import Call, GroupKey
from diagnostics.evidence.model import Frame, LogFact

_FILES_SHOWN = 6
RECORD = (
    "record.level=light (any job: dtk watch -- torchrun ...; under NCCL also TORCH_FR_BUFFER_SIZE=2000 "
    "TORCH_FR_DUMP_TEMP_FILE=/tmp/flight_rank_)"
)
"""What records the calls of all ranks."""


def where(rank: int | None, place: Call | Frame | None, does: str | None = None) -> tuple[Where, ...]:
    """The user's line of a call or a frame, as the `where` of a finding; empty when stacks were not recorded."""
    site = place.site if isinstance(place, Call) else place
    if site is None:
        return ()
    does = does or (place.text if isinstance(place, Call) else "")
    return (Where(rank, site.file, site.line, site.function, does),)


def group(survey: Survey, key: GroupKey) -> Group:
    """The group as a finding names it."""
    return Group(name=key.name, ranks=survey.members(key), desc="" if key.desc == "undefined" else key.desc)


def dumps(survey: Survey, details: Mapping[int, str]) -> tuple[EvidenceItem, ...]:
    """The dumps of these ranks, with what is to be seen in each."""
    records = [(rank, survey.ranks.get(rank)) for rank in sorted(details)[:_FILES_SHOWN]]
    return tuple(
        EvidenceItem("flight", file, f"rank {rank}: {details[rank]}")
        for rank, record in records
        for file in (record.files[:1] if record else ())
    )


def lines(facts: "list[LogFact] | tuple[LogFact, ...]") -> tuple[EvidenceItem, ...]:
    """Lines of logs."""
    return tuple(EvidenceItem("log", fact.file, fact.text, fact.line) for fact in facts)
