"""Limits for untrusted files, and the only functions that read one: whole, as YAML, or as a decompressed stream."""

import errno
import gc
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from diagnostics.contract.files import open_regular, read_record

BLOCK_BYTES = 1 << 20
MOST_DEPTH = 500
"""Python's own limit is 1,000 calls, some of which the reader uses: deeper values cannot be read with any factor."""
MOST_NODES = 100_000  # Maximum number of nodes with aliases expanded. A dtk configuration has about 200.
_NUMBER_LENGTH = 400
"""Characters of a number: the longest float has 325. YAML 1.1 reads `1:00:00` in time quadratic in its length."""
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)  # Not a Struct: `dtk diagnose --help` shows it without importing msgspec.
class Limits:
    """Limits, scaled together by `--limit-scale`; all are listed in `dtk diagnose --help`."""

    whole_bytes: int = 256 << 20
    """Largest file, after decompression, that is loaded as a whole (dumps, snapshots, stacks)."""
    stream_bytes: int = 16 << 30
    """Largest file, after decompression, that is read as a stream (traces, logs)."""
    ratio: int = 200
    """Decompressed over compressed bytes, after the first 64 MiB: real traces stay below 60."""
    depth: int = 64
    """Nesting of JSON; no factor raises it above `MOST_DEPTH`."""
    line_bytes: int = 64 << 10
    """Longest line of a log; the rest of a longer one is skipped."""
    event_bytes: int = 4 << 20
    """Longest single event of a trace."""
    files: int = 200_000
    """Maximum number of files below PATH."""
    spans: int = 4_000_000
    """Device events kept per trace or Nsight export; its window ends at the limit."""
    seconds: int = 60
    """Processor time for one file or one cause; `budget` adds time for each MiB of evidence."""
    memory_bytes: int = 1 << 30
    """Memory for one file or one cause; `budget` adds memory likewise."""

    def scaled(self, factor: float) -> "Limits":
        """Return all limits times `factor`; the depth is at most `MOST_DEPTH`, or unchanged."""
        scaled = {name: int(getattr(self, name) * factor) for name in self.__dataclass_fields__}
        scaled["depth"] = min(scaled["depth"], max(MOST_DEPTH, self.depth))
        return Limits(**scaled)


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection while building data without cycles: collecting would take longer than building."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class EmptyFileError(ValueError):
    """A file without content."""

    def __init__(self) -> None:
        super().__init__("it is empty")


class TooLargeError(ValueError):
    """A file exceeds a limit. The message names it, and how to raise it."""


SMALL_BYTES = 1 << 20  # Size limit of `small_json`.
RATIO_FREE_BYTES = 64 << 20  # Bytes without a limit on the ratio: short files of zeros are harmless.


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_Tell = Callable[[Path, float], None]
_listeners: list[_Tell] = []


@contextmanager
def reading(tell: _Tell) -> Iterator[None]:
    """Within the context, call `tell(path, share)` with the read share of each file, 0 to 1, many times a second."""
    _listeners.append(tell)
    try:
        yield
    finally:
        _listeners.remove(tell)


def is_deeper(head: bytes, limits: Limits) -> bool:
    """Return whether JSON with this beginning is nested deeper than the limit."""
    if head.lstrip()[:1] not in (b"{", b"["):
        return False
    depth = 0
    for char in _STRING.sub(b"", head):
        depth += (char in b"[{") - (char in b"]}")
        if depth > limits.depth:
            return True
    return False


def blocks(path: Path, limits: Limits, block_bytes: int = BLOCK_BYTES, text: bool = False) -> Iterator[bytes]:
    """Yield the bytes of a file in blocks of about `block_bytes`, decompressed if gzip (any number of members).

    With `text` the holes of a sparse file are skipped, as they contain no lines.

    OSError if it cannot be read, TooLargeError if it exceeds `stream_bytes` or `ratio`, ValueError if the gzip stream
    is damaged; the intact part has been yielded.
    """
    total = 0
    with open_regular(path, follow=False) as file:
        head = file.read(2)
        file.seek(0)
        size = max(1, os.fstat(file.fileno()).st_size)
        plain = _written(file, block_bytes) if text else iter(lambda: file.read(block_bytes), b"")
        for block in _gunzip(file, limits, block_bytes) if head == _GZIP else plain:
            total += len(block)
            if total > limits.stream_bytes:
                raise TooLargeError(f"over {limits.stream_bytes >> 20} MiB; raise it with --limit-scale")
            for tell in _listeners:
                tell(path, file.tell() / size)
            yield block


def _written(file: BinaryIO, block_bytes: int) -> Iterator[bytes]:
    while block := file.read(block_bytes):
        yield block
        if hasattr(os, "SEEK_DATA") and block.count(0) == len(block):
            try:
                file.seek(file.tell(), os.SEEK_DATA)
            except OSError as problem:
                if problem.errno == errno.ENXIO:  # Only a hole up to the end, or the file system does not report holes.
                    return


def lines_of(path: Path, limits: Limits) -> Iterator[bytes]:
    """Yield lines without line ends, overlong ones cut, which makes them invalid; OSError, ValueError as `blocks`."""
    rest = b""
    for block in blocks(path, limits, text=True):
        *complete, rest = (rest + block).split(b"\n")
        yield from complete
        rest = rest[: limits.line_bytes]
    if rest:
        yield rest


def _gunzip(file: object, limits: Limits, block_bytes: int) -> Iterator[bytes]:
    read = file.read  # type: ignore[attr-defined]
    raw = out = 0
    stream = zlib.decompressobj(31)
    data = b""
    while True:
        if not data:
            data = read(block_bytes >> 2)
            raw += len(data)
            if not data:
                if not stream.eof:
                    raise ValueError("the gzip stream ends in the middle")
                return
        if stream.eof:
            if not data.strip(b"\0"):  # padding after the last member
                data = b""
                continue
            stream = zlib.decompressobj(31)
        try:
            block = stream.decompress(data, block_bytes)
        except zlib.error as problem:
            raise ValueError(f"damaged gzip: {problem}") from problem
        data = stream.unused_data if stream.eof else stream.unconsumed_tail
        out += len(block)
        if out > RATIO_FREE_BYTES and out > limits.ratio * raw:
            raise TooLargeError(f"decompresses to over {limits.ratio} times its size; raise it with --limit-scale")
        if block:
            yield block


def whole(path: Path, limits: Limits) -> bytes:
    """Return all bytes of a file, decompressed if gzip.

    OSError if it cannot be read, TooLargeError if the file exceeds `whole_bytes` or `ratio`, ValueError if the gzip
    stream is damaged.
    """
    parts: list[bytes] = []
    total = 0
    for block in blocks(path, limits):
        total += len(block)
        if total > limits.whole_bytes:
            raise TooLargeError(f"over {limits.whole_bytes >> 20} MiB; raise it with --limit-scale")
        parts.append(block)
    return b"".join(parts)


def small_json(path: Path, limits: Limits, most_bytes: int = SMALL_BYTES) -> dict[str, Any]:
    """Return the object in a small record of at most `most_bytes`.

    OSError if it cannot be read, ValueError if it is damaged, too large, nested too deeply, or not an object.
    """
    data = whole(path, limits)
    if len(data) > most_bytes:
        raise TooLargeError(f"over {most_bytes >> 20} MiB for such a record")
    if not data.strip():
        raise EmptyFileError
    try:
        value = json.loads(data)
    except RecursionError as problem:
        raise ValueError("nested too deeply") from problem
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def checked_text(path: Path) -> str:
    """Return the text of a file that another loader is to read; OSError, ValueError as `read_record`, `load_yaml`."""
    data = read_record(path)
    load_yaml(data, Limits())
    return data.decode()


def load_yaml(data: bytes, limits: Limits, *, several: bool = False) -> Any:
    """Load plain values, a list of `several` documents; ValueError if damaged, too deep, too large or ambiguous."""
    import yaml  # Here, as it costs a diagnosis without a run folder a tenth of its start.

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(data, Loader=loader), limits.depth)
        return list(yaml.load_all(data, loader)) if several else yaml.load(data, loader)  # noqa: S506 - a safe one
    except yaml.YAMLError as problem:
        mark, what = getattr(problem, "problem_mark", None), getattr(problem, "problem", None) or str(problem)
        at = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{at}not valid YAML ({' '.join(what.split())[:200]})") from problem
    except (RecursionError, OverflowError, UnicodeError) as problem:
        raise ValueError(f"damaged YAML: {type(problem).__name__}") from problem


def _check_events(events: Iterable[Any], depth: int) -> None:
    """Raise an error if loading would cost out of proportion, or for a key that is there twice; never recurses.

    It counts the nodes with aliases expanded, as a kilobyte of aliases of aliases describes more than any memory holds,
    and the depth, at which the C composer overflows its stack.
    """
    import yaml

    anchors: dict[str, int] = {}
    # Of each collection that has begun: anchor, size, items, and the keys of a mapping.
    open_: list[list[Any]] = [[None, 0, 0, None]]
    for event in events:
        open_[-1][2] += isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append([event.anchor, 1, 0, set() if isinstance(event, yaml.MappingStartEvent) else None])
            anchors.pop(event.anchor or "", None)
            if len(open_) > depth:
                raise ValueError(f"refused: nested over {depth} levels")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size, _, _ = open_.pop()
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise ValueError("refused: it refers to itself")
            anchor, size = None, anchors[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
            if len(event.value) > _NUMBER_LENGTH and event.implicit[0] and event.value[0] in "+-.0123456789":
                raise ValueError("refused: a number without end")
            keys = open_[-1][3]
            if keys is not None and open_[-1][2] % 2 and event.value != "<<":
                if event.value in keys:
                    twice = f'the key "{event.value[:60]}" is there twice'
                    raise yaml.constructor.ConstructorError(None, None, twice, event.start_mark)  # type: ignore[arg-type]
                keys.add(event.value)
        else:
            continue
        if anchor is not None:
            anchors[anchor] = size
        open_[-1][1] += size
        if open_[-1][1] > MOST_NODES:
            raise ValueError("refused: it describes too much")


def head(path: Path, size_bytes: int = 8192) -> bytes:
    """Return the first bytes of a file, decompressed if possible, for readers to identify it; raise OSError."""
    with open_regular(path, follow=False) as file:
        data = file.read(size_bytes)
    if not data.startswith(_GZIP):
        return data
    try:
        return zlib.decompressobj(31).decompress(data, size_bytes)
    except zlib.error:
        return b""


def tail(path: Path, size_bytes: int = 4096) -> bytes:
    """Return the last bytes of a file, none of a compressed one; raise OSError."""
    with open_regular(path, follow=False) as file:
        if file.read(2) == _GZIP:
            return b""
        file.seek(max(0, file.seek(0, os.SEEK_END) - size_bytes))
        return file.read(size_bytes)
