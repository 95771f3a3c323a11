"""What the main thread of a stack is doing: by its frames (`activity.yaml`), C's frames, else its source line."""

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from diagnostics.contract.files import table_beside
from diagnostics.evidence.model import Frame, Stacks, Thread
from diagnostics.evidence.stacks import blocking_calls
from diagnostics.evidence.stacks.dumps import is_native, is_users, main_thread, where
from diagnostics.evidence.stacks.waiting_line import waiting

Doing = Literal[
    "collective", "data loader", "file I/O", "lock", "process", "network", "compile", "debugger", "sleep", "device",
    "stopped", "computing", "user code", "unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a rank's host stands."""

    doing: Doing
    words: str
    """`waiting for a lock: fcntl.flock()`; without the place."""
    frame: Frame | None
    """The user's line."""
    aside: str = ""
    """What else this may be, for sentences: a clause behind `words`."""


_TABLE: dict[str, Any] = table_beside(__file__)
_WORDS: dict[Doing, str] = _TABLE["words"]
_RULES = tuple((rule["kind"], rule.get("words", ""), re.compile("".join(rule["pattern"]))) for rule in _TABLE["rules"])
NOWHERE = Standing("unknown", _WORDS["unknown"], None)
_LOADER = re.compile(r"torch/utils/data/(?:dataloader|_utils/)")
_LOOK = 12
"""Innermost frames that say what the thread is about; the training loop lies outside of them."""


def doing(stacks: Stacks, taken_s: float | None = None) -> Standing:
    """Return what the main thread is doing, `unknown` without a frame.

    Args:
        stacks: of one rank.
        taken_s: not after this time (s since 1970), where the dump itself does not say when it was taken.
    """
    thread = main_thread(stacks)
    if thread is None or not thread.frames:
        return NOWHERE
    frame = where(stacks)
    python = [frame for frame in thread.frames if not is_native(frame)]
    # Library frames inside the user's innermost one, whose own name says nothing: any may be called `read`.
    inner = [_place(frame) for frame in takewhile(lambda frame: not (frame.line and is_users(frame)), python[:_LOOK])]
    rules = ((kind, words or _WORDS[kind]) for kind, words, rule in _RULES if any(map(rule.search, inner)))
    finding: tuple[Doing, str] | None = next(rules, None)
    in_loader = any(_LOADER.search(_place(frame)) for frame in python[:_LOOK])
    if finding is None or (in_loader and finding[0] != "data loader"):
        finding = _by_call(thread, python, stacks.time_s or taken_s) or finding
    kind, words = finding or ("user code", _WORDS["user code"])
    if in_loader and kind != "data loader":  # Without workers the user's dataset runs in the main thread.
        words = f"{_WORDS['data loader']}{f', {words}' if finding else ''}"
        kind = "data loader"
    return Standing(kind, words, frame, _TABLE["asides"].get(kind, ""))


def _by_call(thread: Thread, python: list[Frame], taken_s: float | None) -> tuple[Doing, str] | None:
    """Return the call into C that the innermost frame is in: by C's frames, else by the source line."""
    native = list(takewhile(is_native, thread.frames))
    calls = [blocks for frame in native if (blocks := blocking_calls.native(frame.function)) is not None]
    if calls:
        return calls[-1]
    line = waiting(python[0], taken_s) if python and not native else None
    return (line.kind, f"{line.words}: {line.call}") if line is not None else None


def _place(frame: Frame) -> str:
    """py-spy prints `Queue.get` where faulthandler prints `get`."""
    return f"{frame.file.replace(chr(92), '/')}:{frame.function.rpartition('.')[2]}"
