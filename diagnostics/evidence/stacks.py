"""Stacks of living or dying processes: faulthandler's dumps and py-spy's, alone or within logs.

Owns their formats, which thread is the main one, and what the main thread is doing. Knows no verdict.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from diagnostics.evidence.calls import is_library
from diagnostics.evidence.limits import Limits, whole
from diagnostics.evidence.model import Frame, Stacks, Thread

Doing = Literal["collective", "data loader", "file I/O", "lock", "compile", "sleep", "user code", "unknown"]

_FAULT_THREAD = re.compile(
    r"^(?P<kind>Current thread|Thread|Stack) (?:0x[0-9a-fA-F]+)?(?: ?\[(?P<name>[^\]]*)\])? ?"
    r"\(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)$')
_SPY_THREAD = re.compile(r'^Thread (?:0x[0-9A-Fa-f]+|\d+)(?:/\d+)? \((?:active|idle)[^)]*\)(?:: "(?P<name>.*)")?$')
_SPY_FRAME = re.compile(r"^    (?P<function>\S.*) \((?P<file>[^():]+(?:\([^)]*\))?[^():]*)(?::(?P<line>\d{1,9}))?\)$")
_SPY_DETAIL = re.compile(r"^ {8}")
_SPY_PROCESS = re.compile(r"^Process \d+: (?P<command>.*)$")
_LOCAL_RANK = re.compile(r"--local[_-]rank[= ](\d{1,5})")
_WHEN = re.compile(r"^# stacks at (\d{1,12}(?:\.\d+)?) s since 1970")
_THREAD_START = re.compile(r"(?:^|/)threading\.py$")
MAX_THREADS = 4096
MAX_FRAMES = 400


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is a dump of stacks and nothing else."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines() if line.strip()][:4]
    if not lines:
        return False
    if _SPY_PROCESS.match(lines[0]):
        return any(line.startswith("Python v") or _SPY_THREAD.match(line) for line in lines[1:])
    return any(pattern.match(lines[0]) for pattern in (_WHEN, _FAULT_THREAD, _SPY_THREAD))


@dataclass(slots=True)
class Assembler:
    """Fed the lines of one stream; collects the threads of one dump after the other."""

    threads: list[Thread] = field(default_factory=list)
    current: list[Frame] | None = None
    name: str = ""
    labelled_current: bool = False
    spy: bool = False
    time_s: float | None = None
    local_rank: int | None = None
    blanks: int = 0
    done: list[tuple[tuple[Thread, ...], float | None, int | None]] = field(default_factory=list)

    @property
    def active(self) -> bool:
        """Whether the next line may belong to this."""
        return self.current is not None

    def feed(self, text: str) -> bool:
        """One line without its prefix; whether it belongs to a dump."""
        when, process = _WHEN.match(text), _SPY_PROCESS.match(text)
        if when or process:
            self.close()
            self.time_s = float(when[1]) if when else None
            local = _LOCAL_RANK.search(process["command"]) if process else None
            self.local_rank = int(local[1]) if local else None
            return True
        thread = _FAULT_THREAD.match(text) or _SPY_THREAD.match(text)
        if thread:
            self._begin(thread)
            return True
        return self.current is not None and self._frame(text)

    def close(self) -> None:
        """The dump has ended."""
        self._end_thread()
        if self.threads:
            self.done.append((_with_main(self.threads), self.time_s, self.local_rank))
        self.threads, self.time_s, self.local_rank = [], None, None

    def _begin(self, match: re.Match[str]) -> None:
        self._end_thread()
        self.spy = match.re is _SPY_THREAD
        kind = "" if self.spy else match["kind"]
        self.name = match["name"] or ("" if self.spy else "current" if kind.startswith("Current") else "")
        self.current, self.blanks = [], 0

    def _end_thread(self) -> None:
        if self.current is not None and len(self.threads) < MAX_THREADS:
            self.threads.append(Thread(self.name, tuple(self.current)))
        self.current = None

    def _frame(self, text: str) -> bool:
        """A line after a thread's head; a line that is none ends the dump."""
        match = (_SPY_FRAME if self.spy else _FAULT_FRAME).match(text)
        if match and self.current is not None:
            self.blanks = 0
            if len(self.current) < MAX_FRAMES:
                line = match["line"]
                number = int(line) if line and line.isdecimal() else 0
                self.current.append(Frame(match["file"], number, match["function"]))
            return True
        if (self.spy and _SPY_DETAIL.match(text)) or text.strip() in ("<no Python frame>", "..."):
            return True
        if not text.strip() and self.blanks < 2:
            self.blanks += 1
            return True
        self.close()
        return False


def _with_main(threads: list[Thread]) -> tuple[Thread, ...]:
    """The threads with one marked as the main one: by its name, else the one that no `threading` started.

    faulthandler prints the main thread last.
    """
    named = [index for index, thread in enumerate(threads) if thread.name == "MainThread"]
    own = [
        index
        for index, thread in enumerate(threads)
        if thread.frames and not _THREAD_START.search(thread.frames[-1].file.replace("\\", "/"))
    ]
    main = (named or own or [len(threads) - 1])[-1]
    return tuple(Thread(thread.name, thread.frames, index == main) for index, thread in enumerate(threads))


def read(path: Path, file: str, rank: int | None, limits: Limits) -> list[Stacks]:
    """All dumps in a file of stacks; with several, later ones are later moments.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, damaged, or holds no stack.
    """
    assembler = Assembler()
    for line in whole(path, limits).decode("utf-8", "replace").splitlines():
        assembler.feed(line)
    assembler.close()
    if not assembler.done:
        raise ValueError("no stack in it")
    return [Stacks(rank if local is None or rank is not None else local, file, threads, time_s)
            for threads, time_s, local in assembler.done]  # fmt: skip


def main_thread(stacks: Stacks) -> Thread | None:
    """The main thread; None when the dump has no thread."""
    return next((thread for thread in stacks.threads if thread.main), None)


def where(stacks: Stacks) -> Frame | None:
    """The user's line: the main thread's innermost frame outside torch, installed packages and the interpreter."""
    thread = main_thread(stacks)
    if thread is None:
        return None
    return next((frame for frame in thread.frames if not is_library(frame.file) and not _is_standard(frame)), None)


_RULES: tuple[tuple[Doing, re.Pattern[str]], ...] = (
    ("data loader", re.compile(r"torch/utils/data/(?:dataloader|_utils/)|:_try_get_data$|:_next_data$")),
    ("compile", re.compile(r"torch/_(?:dynamo|inductor|functorch/_aot)|triton/(?:compiler|runtime/(?:jit|build))")),
    (
        "collective",
        re.compile(
            r"distributed/(?:distributed_c10d|_functional_collectives|c10d_logger|rendezvous|_symmetric_memory)"
            r"|nn/parallel/distributed\.py:_pre_forward$|distributed/algorithms/join"
        ),
    ),
    (
        "lock",
        re.compile(
            r"threading\.py:(?:acquire|wait|join|_wait_for_tstate_lock|__enter__)$|filelock|portalocker"
            r"|fasteners|:flock$|:lockf$|synchronize\.py:"
        ),
    ),
    ("data loader", re.compile(r"multiprocessing/(?:connection|queues|popen_fork)\.py|queue\.py:get$")),
    (
        "file I/O",
        re.compile(
            r"torch/serialization\.py|distributed/checkpoint/filesystem|/(?:gzip|shutil|pathlib|tempfile|fsspec|zipfile|tarfile)"
            r"|(?:^|/)(?:io|codecs|bz2|lzma|_pyio)\.py:|safetensors|pyarrow|:(?:read|readinto|write|open|fsync|stat|listdir)$"
        ),
    ),
    ("sleep", re.compile(r":sleep$")),
)
_LOADER = re.compile(r"torch/utils/data/(?:dataloader|_utils/)")
_LOOK = 12
"""Innermost frames that say what the thread is about; the training loop lies outside of them."""
_STANDARD = re.compile(r"^<|(?:^|/)(?:threading|queue|selectors|socket|ssl|subprocess|runpy|contextlib|codecs|io)\.py$")


def _is_standard(frame: Frame) -> bool:
    return bool(_STANDARD.search(frame.file.replace("\\", "/")) and "/" not in frame.file.strip("<>"))


def doing(stacks: Stacks) -> Doing:
    """What the main thread is doing. C calls leave no frame: sleeping in user code reads as `user code`
    unless py-spy saw the native frame or the source line says so; `unknown` without a frame.
    """
    thread = main_thread(stacks)
    if thread is None or not thread.frames:
        return "unknown"
    inner = [f"{frame.file.replace(chr(92), '/')}:{frame.function}" for frame in _inner(thread)]
    for kind, pattern in _RULES:
        if any(pattern.search(place) for place in inner):
            return kind
    if any(_LOADER.search(frame.file.replace(chr(92), "/")) for frame in thread.frames[:_LOOK]):
        return "data loader"  # Without workers the user's dataset runs in the main thread, called by the loader.
    return "user code"


def _inner(thread: Thread) -> list[Frame]:
    """Library frames inside the user's innermost one, and that one."""
    inner: list[Frame] = []
    for frame in thread.frames[:_LOOK]:
        inner.append(frame)
        if frame.line and not is_library(frame.file) and not _is_standard(frame):
            break
    return inner
