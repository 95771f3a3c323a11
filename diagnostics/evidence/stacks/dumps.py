"""Stacks of living or dying processes: faulthandler's dumps and py-spy's, alone or within logs."""

import sys
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.model import Evidence, Frame, Stacks, Thread

_TEXT = patterns_beside(__file__)  # Patterns by name. The table describes what each one matches.
FAULT_THREAD = _TEXT["fault_thread"]
SPY_THREAD = _TEXT["spy_thread"]
SPY_PROCESS = _TEXT["spy_process"]
WHEN = _TEXT["when"]
MAX_THREADS = 4096
MAX_FRAMES = 400
_UNKNOWN = Stacks(None, "", ())


class Assembler(Struct):
    """Fed the lines of one stream; collects the threads of one dump after the other."""

    threads: list[Thread] = field(default_factory=list)
    current: list[Frame] | None = None
    name: str = ""
    spy: bool = False
    head: Stacks = _UNKNOWN
    """The rank, time and process of the dump, without its threads."""
    blanks: int = 0
    done: list[Stacks] = field(default_factory=list)

    @property
    def active(self) -> bool:
        """Whether the next line may belong to the current dump."""
        return self.current is not None

    def feed(self, text: str) -> bool:
        """Process one line without its prefix; return whether it belongs to a dump."""
        when, process = WHEN.match(text), SPY_PROCESS.match(text)
        if when or process:
            self.close()
            stated = _TEXT["rank"].search(process["command"]) if process else None
            pid = int(process["pid"]) if process else None
            self.head = Stacks(int(stated[1]) if stated else None, "", (), float(when[1]) if when else None, pid)
            return True
        thread = FAULT_THREAD.match(text) or SPY_THREAD.match(text)
        if thread:
            self._end_thread()
            self.spy = thread.re is SPY_THREAD
            is_current = not self.spy and thread["kind"].startswith("Current")
            self.name = thread["name"] or ("current" if is_current else "")
            self.current, self.blanks = [], 0
            return True
        return self.current is not None and self._frame(text)

    def close(self) -> None:
        """Complete the dump at its end."""
        self._end_thread()
        if self.threads:
            self.done.append(replace(self.head, threads=with_main(self.threads)))
        self.threads, self.head = [], _UNKNOWN

    def _end_thread(self) -> None:
        if self.current is not None and len(self.threads) < MAX_THREADS:
            self.threads.append(Thread(self.name, tuple(self.current)))
        self.current = None

    def _frame(self, text: str) -> bool:
        """Read a line after the head of a thread. A line that is not part of the stack ends the dump."""
        match = (_TEXT["spy_frame"] if self.spy else _TEXT["fault_frame"]).match(text)
        if match and self.current is not None:
            self.blanks = 0
            if len(self.current) < MAX_FRAMES:
                line = match["line"]
                number = int(line) if line and line.isdecimal() else 0
                self.current.append(Frame(match["file"], number, match["function"]))
            return True
        if (self.spy and _TEXT["spy_detail"].match(text)) or text.strip() in ("<no Python frame>", "..."):
            return True
        if not text.strip() and self.blanks < 2:
            self.blanks += 1
            return True
        self.close()
        return False


def with_main(threads: list[Thread]) -> tuple[Thread, ...]:
    """Mark the main thread: `MainThread`, else one that `threading` did not start, else the last (faulthandler's)."""
    named = [index for index, thread in enumerate(threads) if thread.name == "MainThread"]
    own = [
        index
        for index, thread in enumerate(threads)
        if (python := [frame for frame in thread.frames if not is_native(frame)]) and not _is_thread_start(python[-1])
    ]
    main = (named or own or [len(threads) - 1])[-1]
    return tuple(Thread(thread.name, thread.frames, index == main) for index, thread in enumerate(threads))


def target(thread: Thread) -> Frame | None:
    """Return the user's outermost frame of a thread that the program started, or None for any other thread."""
    python = [frame for frame in thread.frames if not is_native(frame)]
    started = bool(python) and not thread.main and _is_thread_start(python[-1])
    return next(filter(is_users, reversed(python)), None) if started else None


def _is_thread_start(frame: Frame) -> bool:
    return _TEXT["thread_start"].search(frame.file.replace("\\", "/")) is not None


def main_thread(stacks: Stacks) -> Thread | None:
    """Return the main thread, or None when the dump has no thread."""
    return next((thread for thread in stacks.threads if thread.main), None)


def where(stacks: Stacks) -> Frame | None:
    """Return the main thread's innermost frame outside torch, installed packages and the interpreter."""
    thread = main_thread(stacks)
    return next(filter(is_users, thread.frames), None) if thread is not None else None


def taken_s(evidence: Evidence, stacks: Stacks) -> float | None:
    """Return the latest possible time of a stack dump (s since 1970); None if even its file has none."""
    if stacks.time_s is not None:
        return stacks.time_s
    with suppress(OSError, ValueError):
        return (evidence.root / stacks.file).stat().st_mtime
    return None


def of_helper(stacks: Stacks) -> bool:
    """Return whether the process is that of a launcher or of a data loader's worker, and no rank."""
    thread = main_thread(stacks)
    return thread is not None and any(_TEXT["helper"].search(frame.file.replace("\\", "/")) for frame in thread.frames)


def is_users(frame: Frame) -> bool:
    """Return whether a frame is in the user's own code."""
    # py-spy shortens the paths of modules: `multiprocessing/connection.py`.
    top, _, inside = frame.file.replace("\\", "/").partition("/")
    is_known = top.removesuffix(".py") in sys.stdlib_module_names or (
        bool(inside) and _TEXT["package"].fullmatch(top) is not None
    )
    return not (is_native(frame) or is_library(frame.file) or is_known)


def is_native(frame: Frame) -> bool:
    """Return whether a frame is native, as recorded by `py-spy dump --native`."""
    return bool(_TEXT["native"].search(frame.file)) or (not frame.line and not frame.file.endswith(".py"))
