"""Outputs of NCCL's RAS subsystem (`ncclras`, as text or with `-f json`): ranks of a communicator that have launched
different numbers of an operation, or whose process does not respond. A single moment confirms no cause.

Source: src/ras/client_support.cc of NCCL 2.24 to 2.29.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from diagnostics.contract.files import patterns_beside
from diagnostics.contract.formatting import first_of
from diagnostics.evidence.limits import whole
from diagnostics.evidence.model import Evidence, LogFact, Rank
from diagnostics.evidence.reader import Contents, Reader, Source
from diagnostics.evidence.readers import log

COUNTS, LOST, AGREES = "ras_counts", "ras_lost", "ras_agrees"
_TEXT = patterns_beside(__file__)
_Difference = tuple[str, int, dict[str, Any]]
"""Kind, line and fields of a fact."""


class _Member(Struct):
    rank: Rank
    status: dict[str, int | bool]
    collective_counts: dict[str, int] = {}


class _Communicator(Struct):
    hash: str
    ranks: list[_Member]
    missing_ranks: list[_Member] = []
    size: int = 0


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is an answer of NCCL's RAS subsystem."""
    if head.lstrip()[:1] == b"{":
        return b'"nccl_version"' in head and b'"communicators_count"' in head
    return head.lstrip().startswith(b"NCCL version") and b"\nJob summary\n===========" in head


def read(source: Source) -> Contents:
    """Return a fact for each difference that the answer reports, and what a log has in which it stands."""
    text, file = whole(source.path, source.limits).decode("utf-8", "replace").replace("\r\n", "\n"), source.file
    is_json = text.lstrip()[:1] == "{"
    differences = _of_json(text) if is_json else _of_text(text)
    facts = [LogFact(kind, None, file, line, fields=fields) for kind, line, fields in differences]
    contents = Contents(file) if is_json else log.read(source.path, file, None, source.limits, source.head)
    rest = (fact for fact in contents.facts if fact.line > 1)  # The first line is of the answer.
    contents.facts = [*(facts or [LogFact(AGREES, None, file)]), *rest]
    return contents


def _counts(
    line: int, op: str, communicator: str, sides: list[dict[str, Any]], launched: dict[int, int], size: int
) -> _Difference:
    """Return how many operations each side and, in the communicator of the whole job, each rank has `launched`."""
    return COUNTS, line, {"op": op, "communicator": communicator, "sides": sides, "launched": launched, "size": size}


def _lost(line: int, who: object, communicator: str, ranks: list[int], row: str = "ras_lost") -> _Difference:
    """Return the `ranks` of the whole job that do not answer; `who` names them as the answer does."""
    return LOST, line, {"who": who, "communicator": communicator, "ranks": ranks, "row": row}


def _of_json(text: str) -> Iterator[_Difference]:
    value = msgspec.json.decode(_TEXT["no_comma"].sub(r",\1", text))
    communicators = msgspec.convert(value.get("communicators"), list[_Communicator])
    sizes = sorted(communicator.size for communicator in communicators)
    of_job = sizes[-1] if sizes and sizes[-1] > 0 and sizes[-2:-1] != sizes[-1:] else None  # The only one of its size.
    for communicator in communicators:
        launched: dict[str, dict[int, int]] = {}
        for own in communicator.ranks:
            for op, count in own.collective_counts.items():
                launched.setdefault(op, {})[own.rank] = count
        name, size = communicator.hash[:40], communicator.size
        for op, counts in launched.items():
            if len(different := sorted({*counts.values()})) > 1:
                who = ((count, [rank for rank in counts if counts[rank] == count]) for count in different)
                sides = [{"who": ranks, "count": count, "ranks": ()} for count, ranks in who]
                yield _counts(1, op, name, sides, counts if size == of_job else {}, size)
        if lost := [own.rank for own in communicator.missing_ranks if any(own.status.values())]:
            yield _lost(1, lost, name, lost if communicator.size == of_job else [])


def _of_text(text: str) -> Iterator[_Difference]:
    """Read the paragraphs of an answer. NCCL lists ranks below a line about them, except those of one large side."""
    groups = {row["group"]: (int(row["size"]), row["count"] == "1") for row in _TEXT["group"].finditer(text)}
    largest = max(groups.values())[0] if groups else 0
    name, of_job, at, line = "", False, 0, 1
    for paragraph in _TEXT["paragraph"].finditer(text):
        line, at, own = line + text.count("\n", at, paragraph.start()), paragraph.start(), paragraph[0]
        if head := _TEXT["communicator"].match(own):
            name = head["hash"][:40]
            of_job = groups.get(head["group"]) == (largest, True)
        if differs := _TEXT["differs"].search(own):
            sides, launched, unlisted = [], dict[int, int](), list[int]()
            for row in _TEXT["launched"].finditer(own):
                ranks, count = _ranks(row["below"]), int(row["number"] or 0)
                listed = ranks or [int(alone) for alone in row["who"].split()[1:] if alone.isdecimal()]
                launched |= dict.fromkeys(listed, count)
                unlisted += [] if listed else [count]
                sides.append({"who": row["who"].lower(), "count": count, "ranks": ranks})
            if len(unlisted) == 1:
                launched |= {rank: unlisted[0] for rank in range(largest) if rank not in launched}
            at_line = line + own.count("\n", 0, differs.start())
            yield _counts(at_line, differs["op"], "", sides, launched if of_job else {}, largest)
        elif lost := _TEXT["lost"].search(own):
            ranks = _ranks(own)
            yield _lost(line, ranks or lost["who"], name, ranks if of_job else [])
        if processes := [match[1] for match in _TEXT["process"].finditer(own)]:
            yield _lost(line, first_of(processes), "", [], "ras_dead" if own.startswith("DEAD") else "ras_process")


def unanswered(evidence: Evidence) -> list[int]:
    """Return the ranks whose processes do not answer."""
    return sorted({rank for fact in evidence.facts if fact.kind == LOST for rank in fact.fields["ranks"]})


def _ranks(text: str) -> list[int]:
    return [int(rank) for row in _TEXT["rank"].finditer(text) for rank in row["ranks"].split(",")]


READER = Reader(kind="ras", title="NCCL RAS reports", recognise=recognise, open=read, facts=(COUNTS, LOST, AGREES))
