"""Outputs of NCCL's RAS subsystem (`ncclras`, as text or with `-f json`): ranks of a communicator that have launched
different numbers of an operation, or whose process does not respond. A single moment confirms no cause.

Source: src/ras/client_support.cc of NCCL 2.24 to 2.29.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from diagnostics.contract.files import patterns_beside
from diagnostics.contract.formatting import ranks_spoken
from diagnostics.evidence.limits import whole
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.reader import Contents, Reader, Source
from diagnostics.evidence.values import Rank

COUNTS, LOST, AGREES = "ras_counts", "ras_lost", "ras_agrees"
_TEXT = patterns_beside(__file__)


class _Member(Struct):
    rank: Rank
    status: dict[str, int | bool]
    collective_counts: dict[str, int] = {}


class _Communicator(Struct):
    hash: str
    ranks: list[_Member]
    missing_ranks: list[_Member] = []


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is an answer of NCCL's RAS subsystem."""
    if head.lstrip()[:1] == b"{":
        return b'"nccl_version"' in head and b'"communicators_count"' in head
    return head.lstrip().startswith(b"NCCL version") and b"\nJob summary\n===========" in head


def read(source: Source) -> Contents:
    """Read one answer: a fact for each difference that it reports."""
    data, file = whole(source.path, source.limits), source.file
    entries = _of_json(data) if data.lstrip()[:1] == b"{" else _of_text(data.decode("utf-8", "replace"))
    facts = [LogFact(kind, None, file, line, text) for kind, line, text in entries]
    return Contents(file, facts=facts or [LogFact(AGREES, None, file, 0, "RAS reports no difference between ranks")])


def _of_json(data: bytes) -> Iterator[tuple[str, int, str]]:
    for communicator in msgspec.convert(msgspec.json.decode(data).get("communicators"), list[_Communicator]):
        launched: dict[str, dict[int, list[int]]] = {}
        for own in communicator.ranks:
            for op, count in own.collective_counts.items():
                launched.setdefault(op, {}).setdefault(count, []).append(own.rank)
        for op, by_count in launched.items():
            parts = (f"{ranks_spoken(ranks)} launched {count:,}" for count, ranks in sorted(by_count.items()))
            if len(by_count) > 1:
                yield COUNTS, 1, f"{op} of communicator {communicator.hash[:40]}: {'; '.join(parts)}"
        if lost := [own.rank for own in communicator.missing_ranks if any(own.status.values())]:
            yield LOST, 1, f"no answer from {ranks_spoken(lost)} of communicator {communicator.hash[:40]}"


def _of_text(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, line number, text) of each difference. NCCL lists ranks below the line, except the majority."""
    kind, at, parts, listed = "", 0, list[str](), list[int]()
    for line, text_line in enumerate([*text.splitlines(), ""], 1):
        if match := _TEXT["rank"].match(text_line):
            listed.append(int(match[1]))
            continue
        if listed:
            parts[-1:] = [f"{part} ({ranks_spoken(listed)})" for part in parts[-1:]]
            listed = []
        if match := _TEXT["launched"].match(text_line):
            parts.append(f"{match['who'].lower()} launched {int(match['count'] or 0):,}")
        elif kind and parts:
            yield kind, at, f"{parts[0]}: {'; '.join(parts[1:])}" if kind == COUNTS else parts[0]
            kind, parts = "", []
        if match := _TEXT["differs"].match(text_line) or _TEXT["lost"].match(text_line):
            kind, at = (COUNTS, line) if "op" in match.groupdict() else (LOST, line)
            parts = [match["op"]] if kind == COUNTS else [f"no answer from {match['who']}"]


READER = Reader(kind="ras", title="answers of NCCL's RAS", recognise=recognise, open=read, facts=(COUNTS, LOST, AGREES))
