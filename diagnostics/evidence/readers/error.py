"""How ranks ended: elastic's and dtk's error files, torchrun's list of failures, fatal errors of the interpreter.

Owns these formats. What follows from an end, and who is a victim, is for the detectors.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diagnostics.evidence.endings import signal_of
from diagnostics.evidence.limits import Limits, small_json
from diagnostics.evidence.logs import tracebacks
from diagnostics.evidence.model import Frame, RankError

MAX_BYTES = 8 << 20
"""Of an error file; real ones have a few KiB."""
_MAX_ERRORS = 100_000
_TYPED = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration|Timeout)): ?(.*)$", re.DOTALL
)
_LAUNCHER_TYPES = {"ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException"}

_FATAL = re.compile(r"^Fatal Python error: (?P<what>.{1,200})$")
_FATAL_SIGNALS = {
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is an error file of torch elastic or of dtk."""
    text = head.lstrip()
    if not text.startswith(b"{"):
        return False
    if text[1:].lstrip().startswith(b'"message"'):
        return any(key in head for key in (b'"extraInfo"', b'"py_callstack"', b'"errorCode"')) or len(head) < 8192
    return b'"traceback"' in head and b'"type"' in head and b'"rank"' in head


def read(path: Path, file: str, rank: int | None, limits: Limits) -> RankError:
    """One error file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, too large or no error file.
    """
    return decode(small_json(path, limits, MAX_BYTES), file, rank)


def decode(value: dict[str, Any], file: str, rank: int | None) -> RankError:
    """The record in the content of an error file of dtk or of torch elastic.

    Raises:
        ValueError: it is neither.
    """
    return _dtk(value, file, rank) if "type" in value else _elastic(value, file, rank)


def _dtk(value: dict[str, Any], file: str, rank: int | None) -> RankError:
    trace = value.get("traceback")
    raised = tracebacks.parse(trace) if isinstance(trace, str) else None
    stated = value.get("rank")
    frames = raised.frames if raised else ()
    if not frames and isinstance(value.get("file"), str):
        frames = (Frame(value["file"], _integer(value.get("line")) or 0, _text(value.get("function"))),)
    return RankError(
        rank=stated if isinstance(stated, int) and not isinstance(stated, bool) else rank,
        file=file,
        line=0,
        type=raised.type if raised else _text(value.get("type")),
        message=(raised.message if raised else _text(value.get("message")))[: tracebacks.MAX_MESSAGE],
        frames=frames,
        time_s=_number(value.get("time_s")),
        step=_integer(value.get("step")),
        region=_text(value.get("region")) or None,
    )


def _elastic(value: dict[str, Any], file: str, rank: int | None) -> RankError:
    inner = value.get("message")
    code = _integer(value.get("errorCode"))
    stack = ""
    time_s = None
    if isinstance(inner, dict):
        extra = inner.get("extraInfo")
        extra = extra if isinstance(extra, dict) else {}
        stack, time_s = _text(extra.get("py_callstack")), _number(extra.get("timestamp"))
        code = _integer(inner.get("errorCode")) if code is None else code
        inner = inner.get("message")
    if not isinstance(inner, str):
        raise ValueError("not an error file")
    raised = tracebacks.parse(stack) or tracebacks.parse(inner)
    typed = _TYPED.match(inner)
    if raised is None:
        kind, message = (typed[1].rpartition(".")[2], typed[2]) if typed else ("", inner)
        raised = tracebacks.Raised(kind, message, tracebacks.parse_stack(stack))
    number = signal_of(code) if code is not None and code < 0 else _signal_in(inner)
    return RankError(
        rank, file, 0, raised.type, raised.message[: tracebacks.MAX_MESSAGE], raised.frames, number, code, time_s
    )


def fatal_error(text: str, rank: int | None, file: str, line: int) -> RankError | None:
    """The interpreter's last words in a log: `Fatal Python error: Aborted`."""
    match = _FATAL.match(text)
    if match is None:
        return None
    return RankError(rank, file, line, "", text.strip(), signal=_FATAL_SIGNALS.get(match["what"].strip()))


def launcher_only(kind: str) -> bool:
    """Whether an exception is the launcher's way to say that a rank failed, not a rank's own."""
    return kind in _LAUNCHER_TYPES


_ROW = re.compile(r"^\s{1,8}(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)$")
_RANKS = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,5})\)")
_CODE = re.compile(r"(-?\d{1,5}) \(pid: (\d{1,9})\)")
_SIGNAL = re.compile(r"Signal (\d{1,2}) \((SIG\w+)\) received")


def _signal_in(text: str) -> str | None:
    match = _SIGNAL.search(text)
    return match[2] if match else None


@dataclass(slots=True)
class _Row:
    """One rank in torchrun's list of failures."""

    line: int
    rank: int | None = None
    local_rank: int | None = None
    code: int | None = None
    pid: int | None = None
    signal: str | None = None
    time_s: float | None = None
    what: str = ""
    trace: tracebacks.Assembler = field(default_factory=tracebacks.Assembler)


@dataclass(slots=True)
class FailureTable:
    """torchrun's summary, fed line by line: `rank : 3 (local_rank: 3)`, `exitcode : -9 (pid: 4000)`, ..."""

    rows: list[_Row] = field(default_factory=list)
    row: _Row | None = None

    def feed(self, text: str, number: int) -> bool:
        """One line without its prefix; whether the table goes on."""
        match = _ROW.match(text)
        if match is None:
            if self.row is not None and self.row.what.startswith("Traceback") and text.startswith("  "):
                self.row.trace.feed(text[2:])  # the whole traceback is indented by two
                return True
            self.row = None
            return False
        key, value = match["key"], match["value"].strip()
        if key == "time" or self.row is None:
            self.row = _Row(number)
        self._set(self.row, key, value)
        return True

    def _set(self, row: _Row, key: str, value: str) -> None:
        if key == "time":
            row.time_s = _local_time(value)
        elif key == "rank" and (ranks := _RANKS.match(value)):
            row.rank, row.local_rank = int(ranks[1]), int(ranks[2])
            if len(self.rows) < _MAX_ERRORS:
                self.rows.append(row)
        elif key == "exitcode" and (code := _CODE.match(value)):
            row.code, row.pid = int(code[1]), int(code[2])
            row.signal = signal_of(row.code) if row.code < 0 else None
        elif key == "traceback":
            row.what = value
            row.signal = _signal_in(value) or row.signal
            row.trace.feed(value)

    def offset(self) -> int | None:
        """Global minus local rank where all rows of this node agree; None without rows."""
        offsets = {
            row.rank - row.local_rank for row in self.rows if row.rank is not None and row.local_rank is not None
        }
        return offsets.pop() if len(offsets) == 1 else None

    def listed(self) -> dict[str, list[int]]:
        """Ranks of the list and their process ids."""
        pids = [row.pid for row in self.rows if row.pid is not None]
        return {"ranks": sorted({row.rank for row in self.rows if row.rank is not None}), "pids": sorted(set(pids))}

    def errors(self, file: str) -> list[RankError]:
        """One error for each row, in the order of the ranks."""
        found = []
        for row in self.rows:
            raised = next(iter(row.trace.take(end=True)), None)
            what = f"killed by {row.signal}" if row.signal else f"exit code {row.code}"
            found.append(
                RankError(
                    row.rank, file, row.line, raised.type if raised else "", raised.message if raised else what,
                    raised.frames if raised else (), row.signal, row.code, row.time_s,
                )
            )  # fmt: skip
        return sorted({(e.rank, e.line): e for e in found}.values(), key=lambda e: (e.rank or 0, e.line))


def _local_time(text: str) -> float | None:
    """Local time of the node, written without its zone; taken for UTC, so only differences mean something."""
    try:
        return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 40 else None


def _number(value: Any) -> float | None:
    """Seconds since 1970, which elastic writes as a string."""
    try:
        number = float(value) if isinstance(value, int | float | str) else -1.0
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 1e11 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
