"""Patterns of log lines: the table `patterns.yaml`, compiled, and the decoding of captured values."""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

from msgspec import Struct

from diagnostics.contract.files import table_beside

SIZE = r"[\d.]+ ?(?:[KMGT]i?B|bytes|B)\b"  # A size as formatted by torch.
_DIGITS = 18  # Maximum digits of a number in a line; no valid one has more.
_MAX_RANKS = 100_000


class Pattern(Struct, frozen=True, dict=True):
    """One kind of fact, by one of the words that it is found by."""

    kind: str
    word: bytes
    """Literal text in every such line."""
    text: str
    """Regular expression, compiled when a line first contains the word: most logs need few of them."""
    rank_group: str
    """Group with the global rank that the line is about, if no prefix has it."""

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """Return the compiled expression."""
        return re.compile(self.text, re.ASCII)  # What libraries write; other digits would make no number.


def _table() -> Iterator[Pattern]:
    """Yield the patterns in the order of the file; `%NAME%` stands for a fragment, `%WORD%` for the word."""
    fragments = {"SIZE": SIZE, **{name: "".join(parts) for name, parts in _FILE["fragments"].items()}}
    for line in _FILE["lines"]:
        for word in line["words"]:
            regex = "".join(line["regex"])
            for name, text in {**fragments, "WORD": word}.items():
                regex = regex.replace(f"%{name}%", text)
            yield Pattern(line["kind"], word.encode(), regex, line.get("rank", ""))


ZONE_S = 900.0  # Zones, which most dates of logs do not state, differ by quarters of an hour.
_FILE = table_beside(__file__)
OF_KERNEL = frozenset(_FILE["of_kernel"])
"""Kinds of lines of a kernel's log, which may be about what happened days before the job."""
TABLE: tuple[Pattern, ...] = tuple(_table())
_TEXT = {key: re.compile("".join(parts).replace("%SIZE%", SIZE), re.ASCII) for key, parts in _FILE["values"].items()}
_OOM_PARTS = tuple(
    (name, re.compile(regex.replace("%SIZE%", rf"(?P<size>{SIZE})"))) for name, regex in _FILE["out_of_memory"]
)


def size_bytes(text: str) -> int | None:
    """`1.50 GiB` -> 1610612736. torch writes binary units with and without the i."""
    match = _TEXT["size"].match(text)
    if match is None:
        return None
    value = float(match[1])
    return int(value * 1024 ** ("KMGT".index(match[2]) + 1 if match[2] else 0)) if value < 1e15 else None


def decode(kind: str, match: re.Match[str]) -> dict[str, Any]:
    """Return the fields of a matching line: numbers, sizes in bytes, lists of ranks as lists."""
    fields: dict[str, Any] = {}
    for name, text in match.groupdict().items():
        if text is None:
            continue
        if name == "ranks":
            fields[name] = _ranks(text)
        elif name == "ready":  # Those that came: of ranks above the highest of them nothing is known.
            came = {*_ranks(text)}
            fields["ranks"] = [rank for rank in range(min(max(came, default=0), _MAX_RANKS)) if rank not in came]
        elif name.endswith("_bytes"):
            fields[name] = int(text) if text.isdecimal() and len(text) < 20 else size_bytes(text)
        elif name not in ("value", "version", "gpu", "group", "guid") and _TEXT["number"].fullmatch(text):
            fields[name] = int(text[:_DIGITS])  # Stays a number: who reads it compares it with others.
        else:
            fields[name] = text.strip()[:500]
    if kind == "cuda_oom":
        fields.update(oom_parts(match.string))
    return fields


@lru_cache(maxsize=1024)
def _second(at: str, form: str) -> float:
    return datetime.strptime(at, form).timestamp()


def moments(text: str) -> list[float]:
    """Return the dated times of a text, in seconds since 1970; UTC where it tells no zone."""
    times = []
    for match in _TEXT["moment"].finditer(text):
        with suppress(ValueError):  # No such day, or a word that is no month.
            day = match["date"] or ""
            form = "%b %d %H:%M:%S %Y%z" if not day else f"{'%Y-%m-%d' if day[4] in '-/' else '%m-%d-%Y'} %H:%M:%S%z"
            at = (match["month"] or f"{day} {match['time']}").replace("/", "-") + (match["zone"] or "Z")
            times.append(_second(at, form) + float(f"0.{match['part'] or 0}"))
    return times


def moment(text: str, near_s: float) -> float | None:
    """Return the first time of a line, in the year closest to `near_s` if it has none; None without one."""
    if times := moments(text):
        return times[0]
    if not (match := _TEXT["no_year"].search(text)) or near_s <= 0:
        return None
    year = datetime.fromtimestamp(near_s, UTC).year
    form = "{month} {time} {year}" if match["month"] else "{year}-{mm}-{dd} {time}"
    dated = (moments(form.format(year=number, **match.groupdict())) for number in (year - 1, year, year + 1))
    return min((at for times in dated for at in times), key=lambda at: abs(at - near_s), default=None)


def oom_parts(text: str) -> dict[str, Any]:
    """Parse the figures of an out-of-memory message of torch's allocators, for torch 1.x and 2.x."""
    matches = ((name, regex.search(text)) for name, regex in _OOM_PARTS)
    fields: dict[str, Any] = {name: size_bytes(match["size"]) for name, match in matches if match}
    if gpu := _TEXT["gpu"].search(text):
        fields["gpu"] = int(gpu[1][:6])
    if others := [size_bytes(match["size"]) or 0 for match in _TEXT["process"].finditer(text)]:
        fields |= {"listed_bytes": sum(others), "listed_processes": len(others)}
    return fields


def _ranks(text: str) -> list[int]:
    """Parse `1, 3` or Slurm's `0-3,7`."""
    ranks: list[int] = []
    for match in _TEXT["ranks"].finditer(text):
        first, last = int(match[1]), int(match[2] or match[1])
        ranks.extend(range(first, min(last, first + _MAX_RANKS) + 1))
        if len(ranks) > _MAX_RANKS:
            break
    return ranks
