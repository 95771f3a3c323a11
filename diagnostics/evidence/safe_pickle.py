"""Loads an untrusted pickle of plain values, at C speed, in memory that is bounded by its size.

The first pass walks the opcodes without building anything and refuses what would harm the process in the C unpickler:
lengths beyond the end, memo positions that reserve gigabytes, and numbers and containers made to be costly. The second
pass is the C unpickler, which refuses every global and every persistent object.
"""

import io
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from diagnostics.evidence.limits import EmptyFileError, Limits, TooLargeError, uncollected, whole

_NUMBER_BYTES = 9
"""Maximum length of an integer, for unsigned 64-bit ones. Hashing longer ones as keys can take too much time."""

_GROWTH = 24
_GROWTH_FREE_BYTES = 256 << 20
"""Maximum ratio of the memory of containers to the size of the file, for more than 256 MiB. Real files reach 16."""

_LIST_BYTES, _DICT_BYTES = 104, 232
MOST_VALUES = 4_000_000
"""Limit of values; shared ones count each time, as readers may copy them. 2,000 calls of 50 frames are 400,000."""

_STOP, _FRAME, _LONG1, _LONG4 = 0x2E, 0x95, 0x8A, 0x8B
_TUPLES = frozenset(b"t\x85\x86\x87")
_ASK = b"Q"
"""BINPERSID, inserted after every tuple, makes the C unpickler pass each tuple to `_Plain.persistent_load`."""

_LENGTH_BYTES = {
    **dict.fromkeys(b"UC\x8c", 1),  # SHORT_BINSTRING SHORT_BINBYTES SHORT_BINUNICODE
    **dict.fromkeys(b"TBX", 4),  # BINSTRING BINBYTES BINUNICODE
    **dict.fromkeys(b"\x8d\x8e\x96", 8),  # BINUNICODE8 BINBYTES8 BYTEARRAY8
}
"""Opcode -> number of bytes of the length before its content."""

_REFUSED = {
    **dict.fromkeys(b"PQ", "a persistent object"),  # PERSID BINPERSID
    **dict.fromkeys(b"\x82\x83\x84", "a registered extension"),  # EXT1 EXT2 EXT4
    0x32: "the same object twice on its stack",  # DUP: used by pickle bombs, but not by any writer of dumps.
    **dict.fromkeys(b"\x8f\x90\x91", "a set"),  # Hashing its items may take exponential time.
    **dict.fromkeys(b"\x97\x98", "a buffer from outside"),
}

_NUMBER_LINE = re.compile(rb"[IL][-+]?\d{1,20}L?\r?\n|I0[01]\r?\n|F[-+.\deE infan]{1,40}\r?\n")
_TEXT_LINE = re.compile(rb"[SVg][^\n]*\n")
_PUT_LINE = re.compile(rb"p(\d{1,9})\r?\n")
_GLOBAL_LINES = re.compile(rb"[ci]([^\n]{0,200})\n([^\n]{0,200})\n")


class RefusedError(ValueError):
    """A pickle that is not damaged, but would run code or need resources out of proportion to its size."""

    def __init__(self, why: str) -> None:
        super().__init__(f"refused: {why}")


class _Plain(pickle.Unpickler):
    """Builds None, bool, numbers, str, bytes, lists, dicts and flat tuples only."""

    def find_class(self, module: str, name: str) -> Any:
        raise RefusedError(f"it would execute {module}.{name}")

    def persistent_load(self, value: Any) -> Any:
        if type(value) is not tuple or any(type(item) is tuple for item in value):
            raise RefusedError("tuples within tuples")  # Hashing them takes exponential time, or overflows the stack.
        return value


def loads(data: bytes, limits: Limits) -> Any:
    """Load a pickle of plain values, protocols 0 to 5. Bytes after its end are ignored.

    ValueError if it names a global (the message says which), is damaged, too large, or would need resources out of
    proportion to its size.
    """
    if len(data) > limits.whole_bytes:
        raise TooLargeError(f"over {limits.whole_bytes >> 20} MiB; raise it with --limit-scale")
    if not data:
        raise EmptyFileError
    body = b"".join(_checked(data))
    # With one frame around everything, the C unpickler reads from memory instead of calling read() for each opcode.
    framed = b"".join((b"\x80\x04\x95", len(body).to_bytes(8, "little"), body))
    try:
        with uncollected():
            return _Plain(io.BytesIO(framed)).load()
    except ValueError:
        raise
    except Exception as problem:
        raise ValueError(f"damaged pickle: {problem or type(problem).__name__}") from problem


def refuse_sharing(value: Any, most: int = MOST_VALUES) -> None:
    """Refuse a value that contains itself, or more than `most` values, where shared ones count each time.

    A pickle of a kilobyte can share lists so often that no copy fits into memory. Never recurses. Raises ValueError.
    """
    sizes: dict[int, int] = {}  # Object id -> number of values; 0 while they are being counted.
    open_ = [value] if type(value) in (list, dict, tuple) else []
    while open_:
        container = open_[-1]
        counted_size = sizes.get(id(container))
        if counted_size:
            open_.pop()
            continue
        parts = container.values() if type(container) is dict else container
        inner = [part for part in parts if type(part) in (list, dict, tuple)]
        if counted_size is None:
            sizes[id(container)] = 0
            if 0 in (counted := [sizes.get(id(part)) for part in inner]):
                raise RefusedError("a container within itself")
            if None in counted:
                open_ += [part for part, size in zip(inner, counted, strict=True) if size is None]
                continue
        size = 1 + len(container) + sum(sizes[id(part)] for part in inner)
        if size > most:
            raise RefusedError("it shares its parts so often that it expands to too much data")
        sizes[id(container)] = size
        open_.pop()


def _checked(data: bytes) -> Iterator[bytes]:
    """Yield the checked opcodes as pieces of the data, without frames and with a check inserted after each tuple."""
    lists, dicts = data.count(b"]") + data.count(b"l"), data.count(b"}") + data.count(b"d")
    if _LIST_BYTES * lists + _DICT_BYTES * dicts > max(_GROWTH_FREE_BYTES, _GROWTH * len(data)):
        raise RefusedError("it consists of empty containers")
    plain = _plain_run(len(data)).match
    at = start = 0
    while True:
        at = plain(data, at).end()  # type: ignore[union-attr]  # It also matches the empty run.
        if at >= len(data):
            raise ValueError("damaged pickle: it ends in the middle")
        code = data[at]
        if code == _STOP:
            yield data[start : at + 1]
            return
        if code in _TUPLES:
            at += 1
            yield data[start:at]
            yield _ASK
            start = at
        elif code == _FRAME:
            yield data[start:at]
            at = start = at + 9
        else:
            at = _after(data, at, code)


def _plain_run(size: int) -> re.Pattern[bytes]:
    """Return a pattern of harmless opcodes. Memo positions above what `size` bytes can fill do not match."""
    most = 256 + size // 6  # LONG_BINPUT has 5 bytes and follows at least one byte of the object.
    position = rb"r..[\x00-%b]\x00" % re.escape(bytes([min(most >> 16, 255)]))
    if most >> 24:
        position = rb"r...[\x00-%b]" % re.escape(bytes([most >> 24]))
    tokens = (
        rb"[hqK].",  # BINGET BINPUT BININT1
        rb"[]}(uaesN0l)d1bRo\x81\x88\x89\x92-\x94]",
        rb"M..",  # BININT2
        rb"j....",  # LONG_BINGET
        position,
        rb"J....",  # BININT
        rb"G.{8}",  # BINFLOAT
        rb"\x8a(?:\x06.{6}|\x08.{8}|\x07.{7}|\x05.{5})",  # LONG1 of addresses and nanoseconds
        rb"\x80.",  # PROTO
    )
    return re.compile(rb"(?:" + rb"|".join(tokens) + rb")*+", re.DOTALL)


def _after(data: bytes, at: int, code: int) -> int:
    """Return the position after an opcode that `_plain_run` does not match."""
    if code in _REFUSED:
        raise RefusedError(f"it wants {_REFUSED[code]}")
    if code in _LENGTH_BYTES:
        begin = at + 1 + _LENGTH_BYTES[code]
        end = begin + int.from_bytes(data[at + 1 : begin], "little")
    elif code in (_LONG1, _LONG4):
        begin = at + (2 if code == _LONG1 else 5)
        length = int.from_bytes(data[at + 1 : begin], "little")
        if length > _NUMBER_BYTES:
            raise RefusedError("a number beyond 64 bits")
        end = begin + length
    elif code == 0x72:  # LONG_BINPUT with a position that `_plain_run` does not match.
        raise RefusedError("a memo position beyond what the file can fill")
    else:
        end = _after_lines(data, at, code)
    if end > len(data):
        raise ValueError("damaged pickle: it ends in the middle")
    return end


def _after_lines(data: bytes, at: int, code: int) -> int:
    if code in b"ci":
        names = _GLOBAL_LINES.match(data, at)
        if names is not None:
            module, name = (part.decode("utf-8", "replace") for part in names.groups())
            raise RefusedError(f"it would execute {module}.{name}")
    put = _PUT_LINE.match(data, at)
    if put is not None:
        if int(put.group(1)) > 256 + len(data) // 4:
            raise RefusedError("a memo position beyond what the file can fill")
        return put.end()
    line = _NUMBER_LINE.match(data, at) or _TEXT_LINE.match(data, at)
    if line is None:
        raise ValueError(f"damaged pickle: no opcode at byte {at}")
    return line.end()


_Built = TypeVar("_Built")


def load_plain(path: Path, limits: Limits, build: Callable[[dict[str, Any]], _Built], what: str) -> _Built:
    """Decode a pickle or JSON file that contains a dict, plain or gzip, and return `build(dict)`.

    Values may be of any type: errors that `build` raises for them count as damage. `what` names the file in messages.

    OSError if the file cannot be read, ValueError if it is damaged, too large or too deep, or refused by `build`.
    """
    data = whole(path, limits)
    if not data.strip():
        raise ValueError("the file is empty")
    try:
        value = msgspec.json.decode(data) if data.lstrip()[:1] == b"{" else loads(data, limits)
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__} where a {what} is a dict")
        return build(value)
    except msgspec.DecodeError as problem:
        raise ValueError(f"damaged JSON: {problem}") from problem
    except RecursionError as problem:
        raise ValueError(f"nested over {limits.depth} levels") from problem
    except (TypeError, OverflowError, MemoryError, UnicodeError, AttributeError) as problem:
        raise ValueError(f"damaged {what}: {type(problem).__name__}") from problem
