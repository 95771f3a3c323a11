"""Splits a log of any size into lines, stops only at relevant ones, and finds the rank that wrote a line."""

import codecs
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.limits import Limits, blocks


class Line(NamedTuple):
    """One line without the prefixes of launchers."""

    number: int
    """Line number, from 1."""
    text: str
    stream: str
    """The prefix without times, equal for all lines of one writer, so that interleaved writers can be separated."""
    rank: int | None
    """Rank in the prefix."""
    local_rank: int | None
    """Rank in torchrun's `[default3]:`, local to one node."""
    before: str = ""
    """Text of another writer before the prefix, without a newline, such as a progress bar."""
    drawn: str = ""
    """Earlier states of a progress bar that was drawn over itself, each behind a carriage return; the last ones."""


_TEXT = patterns_beside(__file__)  # Compiled patterns, documented in the table.
COLOUR = _TEXT["colour"]
_PIECE, _GOES_ON = (_TEXT[name].pattern.encode() for name in ("piece", "goes_on"))
_RECORD, _OF_RANK = (re.compile(_TEXT[name].pattern.encode()) for name in ("record", "record_of_rank"))
_JOINED = 100  # Bytes of a line from which it may hold several records.
_JOINT, _ENTITY = re.compile(rb"\n" + _PIECE), re.compile(_TEXT["entity"].pattern.encode())
_MASK = bytes.maketrans(b"123456789", b"000000000")
_PLAIN = 10_000  # Chosen: maximum number of different lines without a word that are kept, but for those of one block.
MATCHED = 4096
"""Characters of a line that patterns see: what they take is at most quadratic in it."""
_WIDTHS = dict.fromkeys(range(60, 251), 3) | dict.fromkeys((80, 100, 120, 132), 2)
"""Columns of terminals -> minimum number of folded lines that shows them: lines have few of these lengths by chance."""
_MOSTLY = 0.8  # Minimum share of the folded lines among those of that width.
_MOST_OF = 0.6  # The same of lines that end with a blank: what was folded may end with one of its own.
_WORD = 60  # Maximum characters of a word in the next line; of longer ones, mostly paths, no pattern needs all.
_OF_RANKS = 0.6  # Minimum share of labelled first lines if the labels repeat: the rest is what the batch script prints.
_LABELLED, _HEAD_LINES = 3, 50
"""Number of first lines that show a label if all of them have it: minimum, as fewer may by chance, and maximum."""
_MESSAGE_KEYS = ("log", "message", "MESSAGE", "msg", "text", "textPayload")
"""Keys under which log shippers and journalctl store a line that they wrap in JSON, some also as its bytes."""
_TRACE_KEYS = ("exc_info", "exc_text", "exception", "traceback", "stack_trace", "stacktrace", "error.stack_trace")
"""Keys under which loggers of JSON put the traceback that belongs to a message."""
_TRACE = 3500  # Characters of it that are kept, from its end.
_RANK_KEYS = ("rank", "global_rank")


def split(number: int, raw: bytes, label: re.Pattern[str] | None = None) -> Line:
    """Split a line into prefixes and text; `label` is what `label_of` found in front of the lines."""
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    rank = local_rank = None
    if text.startswith("{"):
        with suppress(ValueError, TypeError, RecursionError):
            record = json.loads(text)
            record |= record["jsonPayload"] if isinstance(record.get("jsonPayload"), dict) else {}
            rank = next((value for key in _RANK_KEYS if type(value := record.get(key)) is int and value >= 0), None)
            said = next((record[key] for key in _MESSAGE_KEYS if isinstance(record.get(key), str | list)), text)
            text = (said if isinstance(said, str) else bytes(said).decode("utf-8", "replace")).rstrip("\r\n")
            traces = (trace for key in _TRACE_KEYS if isinstance(trace := record.get(key), str) and "\n" in trace)
            if trace := next(traces, ""):
                first, _, rest = trace.partition("\n")
                text = "\n".join((text[:400], first, rest[-_TRACE:]))
    before = drawn = ""
    if "\r" in text:  # A progress bar was drawn over itself: its last state counts, and the first one without a loss.
        drawn, _, text = text.rpartition("\r")
        if bad := _TEXT["non_finite"].search(drawn):
            before = drawn[drawn.rfind("\r", 0, bad.start()) + 1 : bad.end()][-MATCHED:]
    text = text[:MATCHED]
    if "\x1b" in text:
        text = COLOUR.sub("", text)
    at, writer = 0, "" if rank is None else f"[rank{rank}]:"
    if label is not None and (labelled := label.match(text)):
        rank, at = int(labelled["rank"]) if labelled["rank"] else None, labelled.end()
    stream = writer + text[:at]
    while True:
        if match := _TEXT["prefix"].match(text, at):
            at = match.end()
            stream += "" if match["time"] else match[0]
            stated = match["rank"] or match["mpi"] or match["ray"]
            rank = int(stated) if stated else rank
            local_rank = int(match["local"]) if match["local"] else local_rank
        elif rank is None and "[rank" in text and (other := _TEXT["before_rank"].match(text, at)):
            at, before, stream = other.end(), other[0], ""
        else:
            return Line(number, text[at:], stream.rstrip(), rank, local_rank, before, drawn[-MATCHED:])


def records(raw: bytes) -> list[bytes]:
    """Split a line at the beginnings of records whose newlines were lost."""
    of_rank = raw.startswith(b"[rank")
    if raw.count(b"[rank") < 2 if of_rank else len(raw) < _JOINED or raw.startswith(b"{"):
        return [raw]
    pattern = _OF_RANK if of_rank else _RECORD
    starts = [0, *(match.start() + 1 for match in pattern.finditer(raw)), len(raw)]
    return [raw[a:b].rstrip() for a, b in pairwise(starts)] if len(starts) > 2 else [raw]


def label_of(head: bytes) -> re.Pattern[str] | None:
    """Return what the first lines of a log begin with: a rank (`srun --label`) or a host (pdsh, DeepSpeed)."""
    text = head.decode("utf-16" if has_utf16_mark(head) else "utf-8", "replace")
    lines = [line for line in text.splitlines()[:-1] if line][:_HEAD_LINES]
    labels = (_TEXT["srun_label"], _TEXT["host_label"], _TEXT["block_label"]) if len(lines) >= _LABELLED else ()
    ranks = [match["rank"] for line in lines if (match := _TEXT["srun_label"].match(line))]
    if labels and len(ranks) >= _OF_RANKS * len(lines) and 2 * len({*ranks}) <= len(ranks):
        return _TEXT["srun_label"]
    return next((label for label in labels if all(map(label.match, lines))), None)


def widths_of(head: bytes) -> tuple[int, int]:
    """Return the lengths of lines that a terminal, or `fold -s`, folded; (0, 0) if the first lines of a log show none.

    No line is longer than a terminal's width, and what follows a line of that width begins neither like a line of a log
    nor like that one. Between words lines are folded behind a blank, where the next word would not fit. What a runtime
    put in front of each piece does not count.
    """
    text = re.sub(r"\d", "0", head.decode("utf-8", "replace"))
    lines = [_TEXT["piece"].sub("", line, count=1) for line in text.split("\n")[:-1]]
    width = max(map(len, lines), default=0)
    others = [(line, after) for line, after in pairwise(lines) if line[:6] != after[:6]]
    full = [line for line in lines[:-1] if len(line) == width in _WIDTHS]
    folded = [line for line, after in others if len(line) == width and _TEXT["goes_on"].search(f"{line}\n{after}")]
    at_blank = [(line, after.split(" ")[0]) for line, after in others if line[-1:] == " " != line[-2:-1]]
    behind = [line for line, word in at_blank if len(line) + len(word) >= width]
    if len(behind) >= max(_WIDTHS.get(width, len(lines) + 1), _MOST_OF * len(at_blank), len(full)):
        return width - _WORD, width
    return (width, width) if len(folded) >= max(_WIDTHS.get(width, len(lines) + 1), _MOSTLY * len(full)) else (0, 0)


def has_utf16_mark(head: bytes) -> bool:
    """Return whether a text begins with the byte order mark of UTF-16, as written by PowerShell's `>`."""
    return head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not head.startswith(codecs.BOM_UTF32_LE)


def _utf8(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text in UTF-8 without a byte order mark, decoded as its mark states."""
    decoder: codecs.IncrementalDecoder | None = None
    for n, block in enumerate(blocks):
        if n == 0 and has_utf16_mark(block):
            decoder = codecs.getincrementaldecoder("utf-16")("replace")
        if decoder is not None:
            block = decoder.decode(block).encode("utf-8", "replace")
        yield block.removeprefix(codecs.BOM_UTF8) if n == 0 else block


class LineReader(Struct):
    """Streams the lines of one file that contain one of `words`, and whole sections on request."""

    path: Path
    limits: Limits
    words: tuple[bytes, ...]
    needs_next_line: Callable[[], bool]
    """Whether the consumer requests the next line, whatever its content."""
    every: Callable[[bytes, int], None] | None = None
    """Called with blocks of whole lines and the number of the first, before the relevant ones are yielded."""
    widths: tuple[int, int] = (0, 0)
    """Least and largest length of the lines that were folded, as `widths_of` returns them."""
    plain: set[bytes] = field(default_factory=set)
    """Lines without a word, with every digit replaced."""
    word_indices: tuple[int, ...] = ()
    """Indices of the words that are in the line that was yielded last."""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield number (from 1) and bytes of each relevant line. Lines over `line_bytes` are cut.

        OSError, ValueError as for `limits.blocks`; what came before was yielded.
        """
        number, rest, skipping = 1, b"", False
        for block in _utf8(blocks(self.path, self.limits, text=True)):
            data = rest + block
            if skipping:
                end = data.find(b"\n")
                if end < 0:
                    rest = b""
                    continue
                data, skipping, number = data[end + 1 :], False, number + 1
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) > self.limits.line_bytes:
                end = data.rfind(b"\r") + 1  # A progress bar of an hour may be one line.
            if end == 0 and len(data) > self.limits.line_bytes:  # one line, longer than any that is looked at
                yield from self._among(data[: self.limits.line_bytes], number)
                data, skipping = b"", True
            elif end:
                yield from self._among(data[:end], number)
                number += data.count(b"\n", 0, end)
            rest = data[end:]
        if rest and not skipping:
            yield from self._among(rest, number)

    def _among(self, data: bytes, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the relevant lines in a block of whole lines, the first of which is `number`."""
        if b"&" in data:
            data = _ENTITY.sub(lambda entity: unescape(entity[0].decode()).encode(), data)
        if self.widths[0]:
            low, high = self.widths
            goes_on = rb"(?:(?<=[^ ] )|(?<=^[^\n ]{%d}))\n(?!\n)" % high if low < high else _GOES_ON
            goes_on = goes_on.replace(rb"\n(?!", rb"\n%s(?!" % _PIECE, 1)
            folded = rb"(?m)^%s(?:[^\n]{%d,%d}(?:%s)){1,%d}.*" % (_PIECE, low, high, goes_on, MATCHED // high)
            # Lines keep their numbers.
            data = re.sub(folded, lambda line: _JOINT.sub(b"", line[0]) + b"\n" * line[0].count(b"\n"), data)
        if self.every is not None:
            self.every(data, number)
        hits, at, index = self._hits(data), 0, 0
        while at < len(data):
            if not self.needs_next_line():
                if index == len(hits):
                    return
                before, at = at, data.rfind(b"\n", at, hits[index][0]) + 1 or at
                number += data.count(b"\n", before, at)
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            first, index = index, bisect_left(hits, (end,), index)
            self.word_indices = tuple(sorted(word for _, word in hits[first:index]))
            for record in records(data[at : min(end, at + self.limits.line_bytes)]):
                yield number, record
            at, number = end + 1, number + 1

    def _hits(self, data: bytes) -> list[tuple[int, int]]:
        """Return the positions of the words, each once in a line, and their indices."""
        # Most lines repeat earlier ones with other numbers: only what is new is searched for all words.
        masked = {*data.translate(_MASK).split(b"\n")} - self.plain
        text, hits = b"\n".join(masked), []
        words = [(n, word, mask) for n, word in enumerate(self.words) if (mask := word.translate(_MASK)) in text]
        self.plain = self.plain if len(self.plain) < _PLAIN else set()
        self.plain |= {at for at in masked if len(at) < MATCHED and not any(mask in at for *_, mask in words)}
        for index, word, _ in words:
            at = data.find(word)
            while at >= 0:
                hits.append((at, index))
                after = data.find(b"\n", at)
                at = data.find(word, after) if after >= 0 else -1
        hits.sort()
        return hits
