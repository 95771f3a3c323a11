"""Splits a Chrome trace of any size into events, block by block, and decodes them into typed records.

A batch is only cut where it decodes into whole events, so strings that look like JSON cannot mislead it.
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from diagnostics.contract.files import table_beside
from diagnostics.evidence.limits import Limits, blocks
from diagnostics.evidence.model import Problem, integer

T = TypeVar("T")
_DAMAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_START, _EVENTS, _BETWEEN, _TOKEN, _NOT_JSON = (re.compile(text.encode()) for text in table_beside(__file__).values())
_KEY_BYTES = 256
"""Maximum length of the key with its white space, which may extend over two blocks."""
_BLOCK_BYTES = 1 << 18
"""Fits a core's cache together with its events: blocks of 1 MiB take 1.5 times as long."""
_TAILS = (1 << 12, 1 << 14, 1 << 17)
"""Sizes in bytes of the end of a block in which the end of an event is searched, one after the other."""
_TRIES = 4
"""Number of ends of events that are tried by decoding before the block is cut exactly."""
_HEADER_EVENTS = 4
"""Maximum length of the header in multiples of that of an event: it lists all groups with all their ranks."""


class Scan(Generic[T]):
    """One pass over the events of a trace; memory is bounded by a block and an event, for any size of the file.

    Iterate over `batches()`; afterwards the other attributes are complete.
    """

    def __init__(self, path: Path, limits: Limits, kind: type[T]) -> None:
        self.path = path
        self.limits = limits
        self.header: dict[str, Any] = {}
        """Top-level keys before the events; those after them are added at the end."""
        self.problem: Problem | None = None
        """Why the file was not read to its end; None if it was."""
        self.damaged = 0
        """Number of events that could not be decoded."""
        self.deep = 0
        """Number of those that are nested too deeply."""
        self._strict = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._lenient = msgspec.json.Decoder(kind, strict=False)  # ROCm's profiler writes numbers as strings.
        self._raw = msgspec.json.Decoder(list[msgspec.Raw])

    @property
    def info(self) -> dict[str, Any]:
        """The header's `distributedInfo`."""
        info = self.header.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    @property
    def rank(self) -> int | None:
        """Rank according to the header, as written by torch or else by dtk; None if not recorded."""
        return integer(self.info.get("rank", self._own.get("rank")), 0)

    @property
    def held_bytes(self) -> int | None:
        """Bytes of the tensors that were alive before the window, by dtk; the allocator of a CPU does not tell."""
        return integer(self._own.get("held_bytes"), 0)

    @property
    def _own(self) -> dict[str, Any]:
        own = self.header.get("dtk")
        return own if isinstance(own, dict) else {}

    @property
    def world_size(self) -> int | None:
        """World size according to the header; None if not recorded."""
        return integer(self.info.get("world_size"), 0)

    def batches(self) -> Iterator[list[T]]:
        """Yield decoded events in file order, block by block; OSError if unreadable, ValueError if it is no trace."""
        stream = _Stream(self.path, self.limits)
        rest = self._read_header(stream)
        ended = False
        enough = 0
        for block in chain((b"",), stream):
            if len(rest) + len(block) < enough:
                rest += block
                continue
            events, rest, ended = self._take(rest, block)
            # An event longer than a block is not tried again at every block, which would take quadratic time.
            enough = min(2 * len(rest), self.limits.event_bytes)
            if events:
                yield events
            if ended or len(rest) > self.limits.event_bytes:
                break
        if not ended and len(rest) <= self.limits.event_bytes:
            events, rest, ended = self._exact(rest)
            yield events
        self._finish(stream, rest, ended)

    def _read_header(self, stream: "_Stream") -> bytes:
        """Read the header and return what follows the start of the list of events."""
        data = b""
        for block in stream:
            searched = max(0, len(data) - _KEY_BYTES)
            data += block
            start = _START.match(data)
            if start is not None and start[1] == b"[":
                return data[start.end() :]
            if start is None or start[1] != b"{":
                break
            match = _EVENTS.search(data, searched)
            if match:
                self.header = _mapping(data[: match.start()] + b'"traceEvents":[]}')
                return data[match.end() :]
            if len(data) > _HEADER_EVENTS * self.limits.event_bytes:
                break
        raise ValueError(stream.problem or "it has no traceEvents")

    def _take(self, rest: bytes, block: bytes) -> tuple[list[T], bytes, bool]:
        """Return the whole events of `rest + block`, the remaining bytes, and whether the list of events has ended."""
        framed = bytearray().join((b"[", rest, block))
        for start, end in _ends(framed):
            last = start + 1  # After the event's brace; the separator there is overwritten temporarily.
            kept, framed[last] = framed[last], 0x5D
            text = memoryview(framed)[: last + 1]
            try:
                try:
                    events = self._strict.decode(text)
                except msgspec.ValidationError:  # Events of another type count as damaged.
                    events = self._singly([bytes(raw) for raw in self._raw.decode(text)])
                return events, bytes(memoryview(framed)[end:]), False
            except (msgspec.DecodeError, RecursionError):
                framed[last] = kept
        return self._exact(rest + block)

    def _singly(self, events: list[bytes]) -> list[T]:
        result = []
        for raw in events:
            try:
                result.append(self._lenient.decode(raw))
            except _DAMAGE:
                try:
                    result.append(self._lenient.decode(_NOT_JSON.sub(rb"\g<1>0", raw)))
                except _DAMAGE as problem:
                    self.damaged += 1
                    self.deep += isinstance(problem, RecursionError)
        return result

    def _exact(self, data: bytes) -> tuple[list[T], bytes, bool]:
        """Do the same as `_take` by following strings and brackets, which is slow but always works."""
        events: list[bytes] = []
        depth = start = done = 0
        for match in _TOKEN.finditer(data):
            token = data[match.start()]
            if token == 0x22:
                if match.end() - match.start() < 2 or data[match.end() - 1] != 0x22:
                    break
            elif token in b"{[":
                if depth == 0:
                    start = match.start()
                depth += 1
            elif depth == 0:
                return self._singly(events), data[match.end() :], True
            else:
                depth -= 1
                if depth == 0:
                    done = match.end()
                    events.append(data[start:done])
        return self._singly(events), data[done:], False

    def _finish(self, stream: "_Stream", rest: bytes, ended: bool) -> None:
        if ended:
            for block in stream:
                if len(rest) < self.limits.event_bytes:
                    rest += block
            tail = rest.lstrip().removeprefix(b",")
            self.header |= _mapping(b"{" + tail) if tail.strip(b" \t\r\n}") else {}
        elif len(rest) > self.limits.event_bytes:
            self._cut("large_event", most_mib=self.limits.event_bytes >> 20)
        if stream.problem:
            self._cut("damaged_end", why=stream.problem)
        elif not ended and not self.problem:
            self._cut("torn_end")

    def _cut(self, about: str, **figures: object) -> None:
        self.problem = Problem("trace", self.path.name, about, figures=figures)


class _Stream:
    """The blocks of a file; damage ends the iteration and is stored in `problem`."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._blocks = blocks(path, limits, _BLOCK_BYTES, text=True)
        self.problem = ""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._blocks)
        except ValueError as problem:
            self.problem = self.problem or str(problem)
            raise StopIteration from problem


def _ends(data: bytearray) -> Iterator[tuple[int, int]]:
    """Yield positions at which an event may end and the next one begin, the last ones first."""
    tried = 0
    for tail in _TAILS:
        matches = list(_BETWEEN.finditer(data, max(0, len(data) - tail)))
        for match in reversed(matches[-_TRIES:]):
            yield match.start(), match.end()
            tried += 1
        if tried >= _TRIES or len(data) <= tail:
            return


def _mapping(text: bytes) -> dict[str, Any]:
    """Decode a JSON object. The result is empty if the text is not one."""
    try:
        value = msgspec.json.decode(_NOT_JSON.sub(rb"\g<1>0", text))
    except _DAMAGE:
        return {}
    return value if isinstance(value, dict) else {}
