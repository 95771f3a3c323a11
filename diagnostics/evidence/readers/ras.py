"""Outputs of NCCL's RAS subsystem (`ncclras`, as text or with `-f json`): ranks of a communicator that have launched
different numbers of an operation, or whose process does not respond. A single moment confirms no cause.

Source: src/ras/client_support.cc of NCCL 2.24 to 2.29.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from diagnostics.contract.files import patterns_beside
from diagnostics.contract.formatting import first_of, ranks_spoken
from diagnostics.evidence.limits import whole
from diagnostics.evidence.model import Evidence, LogFact
from diagnostics.evidence.reader import Contents, Reader, Source
from diagnostics.evidence.values import Rank

COUNTS, LOST, AGREES = "ras_counts", "ras_lost", "ras_agrees"
_TEXT = patterns_beside(__file__)
_Difference = tuple[str, int, str, list[int]]
"""Kind, line, text, and the ranks that do not answer or launched fewer operations than most; empty unless the
communicator is that of the whole job."""


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
    """Return a fact for each difference that the answer reports."""
    text, file = whole(source.path, source.limits).decode("utf-8", "replace").replace("\r\n", "\n"), source.file
    differences = _of_json(text) if text.lstrip()[:1] == "{" else _of_text(text)
    facts = [LogFact(kind, None, file, line, what, {"ranks": ranks}) for kind, line, what, ranks in differences]
    return Contents(file, facts=facts or [LogFact(AGREES, None, file, 0, "RAS reports no difference between ranks")])


def _of_json(text: str) -> Iterator[_Difference]:
    value = msgspec.json.decode(_TEXT["no_comma"].sub(r",\1", text))
    communicators = msgspec.convert(value.get("communicators"), list[_Communicator])
    sizes = sorted(communicator.size for communicator in communicators)
    of_job = sizes[-1] if sizes and sizes[-1] > 0 and sizes[-2:-1] != sizes[-1:] else None  # The only one of its size.
    for communicator in communicators:
        launched: dict[str, dict[int, list[int]]] = {}
        for own in communicator.ranks:
            for op, count in own.collective_counts.items():
                launched.setdefault(op, {}).setdefault(count, []).append(own.rank)
        name = f"communicator {communicator.hash[:40]}"
        for op, by_count in launched.items():
            (_, fewest), *others = sorted(by_count.items())
            parts = (f"{ranks_spoken(ranks)} launched {count:,}" for count, ranks in sorted(by_count.items()))
            if others:
                is_few = communicator.size == of_job and 2 * len(fewest) < communicator.size
                yield COUNTS, 1, f"{op} of {name}: {'; '.join(parts)}", fewest if is_few else []
        if lost := [own.rank for own in communicator.missing_ranks if any(own.status.values())]:
            ranks = lost if communicator.size == of_job else []
            yield LOST, 1, f"no answer from {ranks_spoken(lost)} of {name}", ranks


def _of_text(text: str) -> Iterator[_Difference]:
    """Read the paragraphs of an answer. NCCL lists ranks below a line about them, except those of a majority."""
    groups = {row["group"]: (int(row["size"]), row["count"] == "1") for row in _TEXT["group"].finditer(text)}
    largest = max(groups.values())[0] if groups else 0
    name, of_job, at, line = "a communicator", False, 0, 1
    for paragraph in _TEXT["paragraph"].finditer(text):
        line, at, own = line + text.count("\n", at, paragraph.start()), paragraph.start(), paragraph[0]
        if head := _TEXT["communicator"].match(own):
            name = f"communicator {head['hash'][:40]}"
            of_job = groups.get(head["group"]) == (largest, True)
        if differs := _TEXT["differs"].search(own):
            parts, of_count = [], dict[int, list[int]]()
            for row in _TEXT["launched"].finditer(own):
                ranks, count = _ranks(row["below"]), int(row["number"] or 0)
                of_count[count] = ranks or [int(alone) for alone in row["who"].split()[1:] if alone.isdecimal()]
                parts.append(f"{row['who'].lower()} launched {count:,}")
                parts[-1] += f" ({ranks_spoken(ranks)})" if ranks else ""
            fewest = of_count[min(of_count)] if of_job and of_count else []
            yield COUNTS, line + own.count("\n", 0, differs.start()), f"{differs['op']}: {'; '.join(parts)}", fewest
        elif lost := _TEXT["lost"].search(own):
            ranks = _ranks(own)
            who = ranks_spoken(ranks) if ranks else lost["who"]
            yield LOST, line, f"no answer from {who} of {name}", ranks if of_job else []
        if processes := [one[1] for one in _TEXT["process"].finditer(own)]:
            state = "considered dead" if own.startswith("DEAD") else "no answer"
            yield LOST, line, f"{state}: {first_of(processes)}", []


def named(evidence: Evidence, kind: str) -> list[int]:
    """Return the ranks whose processes do not answer (`LOST`), or that launched fewer operations (`COUNTS`)."""
    return sorted({rank for fact in evidence.facts if fact.kind == kind for rank in fact.fields["ranks"]})


def _ranks(text: str) -> list[int]:
    return [int(rank) for row in _TEXT["rank"].finditer(text) for rank in row["ranks"].split(",")]


READER = Reader(kind="ras", title="answers of NCCL's RAS", recognise=recognise, open=read, facts=(COUNTS, LOST, AGREES))
