"""Error files of torch elastic and of dtk. The causes decide what follows from them."""

import re
from pathlib import Path
from typing import Any

from diagnostics.evidence.endings import signal_name
from diagnostics.evidence.limits import Limits, small_json
from diagnostics.evidence.logs import tracebacks
from diagnostics.evidence.logs.launcher import signal_in
from diagnostics.evidence.model import Frame, RankError, integer, seconds
from diagnostics.evidence.reader import Contents, Reader

MAX_BYTES = 8 << 20  # Maximum size of an error file; real ones have a few KiB.
_TYPED = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration|Timeout)): ?(.*)$", re.DOTALL
)


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is an error file of torch elastic or of dtk."""
    text, own = head.lstrip(), (b'"extraInfo"', b'"py_callstack"', b'"errorCode"')
    if text.startswith(b"{") and text[1:].lstrip().startswith(b'"message"'):  # A log has an object in each line.
        return any(key in head for key in own) or (len(head) < 8192 and b"\n{" not in text)
    return text.startswith(b"{") and all(key in head for key in (b'"traceback"', b'"type"', b'"rank"'))


def read(path: Path, file: str, rank: int | None, limits: Limits) -> RankError:
    """Read one error file; raises OSError or ValueError, like `Reader.open`."""
    return decode(small_json(path, limits, MAX_BYTES), file, rank)


def decode(value: dict[str, Any], file: str, rank: int | None) -> RankError:
    """Decode the content of an error file of dtk or of torch elastic; raises ValueError if it is neither."""
    return _dtk(value, file, rank) if "type" in value else _elastic(value, file, rank)


def _dtk(value: dict[str, Any], file: str, rank: int | None) -> RankError:
    trace = value.get("traceback")
    raised = tracebacks.parse(trace) if isinstance(trace, str) else None
    stated = integer(value.get("rank"))
    frames = raised.frames if raised else ()
    if not frames and isinstance(value.get("file"), str):
        frames = (Frame(value["file"], integer(value.get("line")) or 0, _text(value.get("function"))),)
    return RankError(
        rank=rank if stated is None else stated,
        file=file,
        line=0,
        type=raised.type if raised else _text(value.get("type")),
        message=(raised.message if raised else _text(value.get("message")))[: tracebacks.MAX_MESSAGE],
        frames=frames,
        time_s=seconds(value.get("time_s")),
        step=integer(value.get("step")),
        region=_text(value.get("region")) or None,
    )


def _elastic(value: dict[str, Any], file: str, rank: int | None) -> RankError:
    inner, code = value.get("message"), integer(value.get("errorCode"))
    stack, time_s = "", None
    if isinstance(inner, dict):
        extra = inner.get("extraInfo")
        extra = extra if isinstance(extra, dict) else {}
        stack, time_s = _text(extra.get("py_callstack")), seconds(extra.get("timestamp"))
        code = integer(inner.get("errorCode")) if code is None else code
        inner = inner.get("message")
    if not isinstance(inner, str):
        raise ValueError("not an error file")
    raised = tracebacks.parse(stack) or tracebacks.parse(inner)
    typed = _TYPED.match(inner)
    if raised is None:
        kind, message = (typed[1].rpartition(".")[2], typed[2]) if typed else ("", inner)
        raised = tracebacks.Raised(kind, message, tracebacks.parse_stack(stack))
    number = signal_name(-code) if code is not None and code < 0 else signal_in(inner)
    return RankError(
        rank, file, 0, raised.type, raised.message[: tracebacks.MAX_MESSAGE], raised.frames, number, code, time_s
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


READER = Reader(
    kind="error",
    title="elastic error files",
    recognise=recognise,
    open=lambda source: Contents(
        source.file, errors=[read(source.path, source.file, source.owner.rank, source.limits)]
    ),
    order=1,  # Any short JSON that begins with a message is accepted.
)
