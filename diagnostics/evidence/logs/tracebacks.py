"""Puts Python tracebacks together line by line: chained ones, those of data loader workers, mixed streams.

Of a chain one exception is kept: the first, where the others only wrap it or come of clearing up after it, else the
one that was raised while others were being handled. What people paste is often cut, so frames without a head and the
last line alone are taken too. Knows nothing of files and ranks.
"""

import re

from msgspec import Struct, field

from diagnostics.evidence.endings import is_victim, kind_of_exception
from diagnostics.evidence.model import Frame

MAX_FRAMES = 200
MAX_MESSAGE = 2000
"""Characters."""
_MAX_LINES = 2000
"""Lines of one traceback; beyond it is no traceback."""

START = re.compile(r"^[ |+-]*(?:Original )?Traceback \(most recent call last\):(?: \(RANK \d+\))?\s*$")
SPAWNED = re.compile(
    r"^(?:-- Process (?P<process>\d{1,6}) terminated with the following error:"
    r"|Traceback \(most recent call last\): \(RANK (?P<rank>\d{1,7})\))"
)
"""Who repeats the traceback of a process: torch.multiprocessing.spawn, where its number is its rank, and
torch.distributed.checkpoint, whose CheckpointException lists on every rank what the named ones raised."""
HEAD = re.compile(r"(?:Original )?Traceback \(most recent call last\):(?: \(RANK \d+\))?\s*$")
"""The first line wherever it begins: a logger or a progress bar may stand in front of it."""
LONE = re.compile(r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception)|Exception):(?: \S|$)")
"""How the last line of a traceback begins; Python prints it at the beginning of a line, and rich breaks it there."""
_CUT_FRAME = re.compile(r'^ {1,4}File "[^"]*", line \d{1,9}, in ')
"""A frame of a traceback; dumps of stacks by faulthandler have no comma before `in`."""
FRAME = re.compile(r'^[ |]*File "([^"]*)", line (\d{1,9}),? in (.*)$')
_END = re.compile(r"^[ |]*([A-Za-z_][\w.]*)(?:: ?(.*))?$")
_REMOTE = re.compile(r"^[ |]*(?:[\w.]+\.)?RayTaskError(?:\(\w+\))?: ")
"""How Ray's driver begins to repeat the traceback of a task: its frames and its exception follow."""
_CHAIN = re.compile(r"^[ |]*(?:(During handling of the above exception)|The above exception was the direct cause)")
_ORIGINAL = re.compile(r"^[ |]*Original Traceback \(most recent call last\):")
_NEW_RECORD = re.compile(
    r"^(?:Traceback|Exception raised from|terminate called|libc\+\+abi|Fatal Python error|"
    r"frame #\d|\[|={5,}|-{5,}|[EWIF]\d{4} |\d{4}-\d\d-\d\d)"
)
_CONTINUES = re.compile(
    r"^(?:\s|[-*] |Parameter|C[Uu][Dd][Aa] |CUDA$|For debugging|Compile with|Device-side|In addition|You can|If you|"
    r"If that|Please|This error|Note|making sure|ncclS|ncclU|ncclI|Last error|size mismatch|Missing key|Unexpected key|"
    r"Expected|Got |Search for|See |Set |Try |Full error|Details|Caused by|Original|Process \d|Rank \d|[Kk]ey )"
)
"""How lines that torch and others put behind the first of a message begin."""
_BOX = re.compile(r"^\s*[╭┌+][─-]+ ?Traceback \(most recent call last\) ?[─-]+[╮┐+]\s*$")
_BOX_ROW = re.compile(r"^\s*[│|] (.+) [│|]\s*$")
_BOX_END = re.compile(r"^\s*[╰└+][─-]+[╯┘+]\s*$")
_BOX_FRAME = re.compile(r"(\S.*?):(\d{1,9}) in (\S.*?)\s*$")
_NO_PATH = " ❱╭╰│|+."
"""How lines of code, of variables and of frames that are left out begin."""
_MAX_PATH = 4096
_NO_FRAME = re.compile(r"^\s*(?:[~^ ]+|\[Previous line repeated .*)$")


class Raised(Struct):
    """One exception, its frames innermost first."""

    type: str
    """Without its module, as `error.json` writes it."""
    message: str
    frames: tuple[Frame, ...]
    aside: bool = False
    """It ended no process: that of a side thread, of a destructor."""
    remote: bool = False
    """A process repeats what another one raised, of which it does not say the rank."""


class Box(Struct):
    """Translates the tracebacks that rich draws in a box (Typer, Lightning) into lines as Python prints them."""

    inside: bool = False
    cut: str = ""
    """A frame so far whose path went over the end of its line."""

    def lines(self, text: str) -> tuple[str, ...]:
        """Return what a line stands for; nothing for borders, code and values of variables."""
        if _BOX.match(text):
            self.inside, self.cut = True, ""
            return ("Traceback (most recent call last):",)
        row = _BOX_ROW.match(text) if self.inside else None
        if row is None:
            ended, self.inside = self.inside and bool(_BOX_END.match(text)), False
            return () if ended else (text,)
        whole = self.cut + row[1]
        is_path = row[1][0] not in _NO_PATH and len(whole) < _MAX_PATH
        frame = _BOX_FRAME.match(whole) if is_path else None
        # Folded within a word where the line is full, else between words.
        self.cut = (whole if whole[-1] != " " else f"{whole.rstrip()} ") if is_path and frame is None else ""
        return (f'  File "{frame[1]}", line {frame[2]}, in {frame[3]}',) if frame else ()


class Assembler(Struct):
    """Fed the lines of one stream; `take` gives what is complete."""

    first: Raised | None = None
    """The exception that is kept of the chain so far, complete but for what may still be chained to it."""
    frames: list[Frame] = field(default_factory=list)
    """Outermost first."""
    inside: bool = False
    """Between `Traceback` and the exception's line."""
    chained: bool = False
    handled: bool = False
    """What is chained was raised while the kept one was being handled, rather than wraps it."""
    nested: bool = False
    """Within `Original Traceback` of a data loader's worker."""
    indent: int = 0
    quiet: int = 0
    """Lines since the exception's line."""
    length: int = 0
    done: list[Raised] = field(default_factory=list)
    message_open: bool = False
    aside: bool = False
    """Set from outside before the first line of such a traceback."""

    @property
    def active(self) -> bool:
        """Whether the next line may belong to this."""
        return self.inside or self.first is not None

    def separate(self, text: str) -> bool:
        """Whether a traceback that begins with this line has nothing to do with the complete one before it."""
        return self.first is not None and not (self.chained or _ORIGINAL.match(text))

    def feed(self, text: str) -> None:
        """One line without its prefix."""
        if START.match(text):
            self.nested = self.first is not None and bool(_ORIGINAL.match(text))
            if self.separate(text):
                self._close()
            self.inside, self.length, self.frames = True, 0, []
            self.indent = len(text) - len(text.lstrip(" |+-"))
        elif self.inside:
            self._inside(text)
        elif self.first is not None:
            self._after(text)
        if not self.active and _CUT_FRAME.match(text):
            self.inside, self.length, self.frames, self.indent = True, 0, [], 0
            self._inside(text)
        elif not self.active and LONE.match(text) and (end := _END.match(text)) is not None:
            self._ended(Raised(end[1].rpartition(".")[2], (end[2] or "").strip()[:MAX_MESSAGE], (), self.aside))

    def take(self, end: bool = False) -> list[Raised]:
        """Complete exceptions since the last call; with `end` also the last one."""
        if end:
            self._close()
            self.inside = False
        taken, self.done = self.done, []
        return taken

    def _inside(self, text: str) -> None:
        self.length += 1
        if frame := FRAME.match(text):
            if len(self.frames) < MAX_FRAMES:
                self.frames.append(Frame(frame[1], int(frame[2]), frame[3].strip()))
            return
        depth = len(text) - len(text.lstrip(" |"))
        if not text.strip() or depth > self.indent or _NO_FRAME.match(text):
            self.inside = self.length <= _MAX_LINES
            return
        if _REMOTE.match(text):
            self.first = Raised("RayTaskError", "", tuple(reversed(self.frames)), self.aside, remote=True)
            self.frames, self.nested = [], True
            return
        end = _END.match(text)
        self.inside = False
        if end is not None and self.frames:
            message = (end[2] or "").strip()[:MAX_MESSAGE]
            self._ended(Raised(end[1].rpartition(".")[2], message, tuple(reversed(self.frames)), self.aside))

    def _ended(self, raised: Raised) -> None:
        self.quiet, self.message_open = 0, True
        if self.first is None:
            self.first = raised
        elif self.nested:  # the worker's own exception is the cause, the reader's frames lie around it
            raised.frames = (*raised.frames, *self.first.frames)[:MAX_FRAMES]
            raised.remote = self.first.remote
            self.first = raised
        elif self.handled and not _is_consequence(raised, self.first):
            self.first = raised
        else:
            self.message_open = False
            then = f"{raised.type}: {raised.message}" if raised.message else raised.type
            self.first.message = f"{self.first.message} (then {then})".strip()[:MAX_MESSAGE]
        self.chained = self.handled = self.nested = False

    def _after(self, text: str) -> None:
        self.quiet += 1
        if chain := _CHAIN.match(text):
            self.chained, self.handled, self.message_open = True, bool(chain[1]), False
        elif not text.strip() or _NEW_RECORD.match(text):
            self.message_open = False
        elif self.first is not None and self.first.message and not _CONTINUES.match(text):
            self.message_open = False  # the log goes on with something else
        elif self.message_open and self.first is not None and len(self.first.message) < MAX_MESSAGE:
            self.first.message = f"{self.first.message}\n{text.strip()}".strip()[:MAX_MESSAGE]
        if self.quiet > (8 if self.chained or self.message_open else 3):
            self._close()

    def _close(self) -> None:
        if self.first is not None:
            self.done.append(self.first)
        self.first, self.quiet = None, 0
        self.chained = self.handled = self.nested = self.aside = False


def _is_consequence(later: Raised, earlier: Raised) -> bool:
    """Whether an exception that was raised while another was handled is no news beside it."""
    after, before = (kind_of_exception(raised.type, raised.message, raised.frames) for raised in (later, earlier))
    return before == "oom" or (is_victim(after) and not is_victim(before))


def parse(text: str) -> Raised | None:
    """Return the exception that a traceback's text describes (for a chain, see above), or None without one."""
    assembler = Assembler()
    for line in text.splitlines()[:_MAX_LINES]:
        assembler.feed(line)
    return next(iter(assembler.take(end=True)), None)


def parse_stack(text: str) -> tuple[Frame, ...]:
    """Return the frames of a traceback, innermost first. The text has them outermost first and may be cut off."""
    matches = filter(None, map(FRAME.match, text.splitlines()[:_MAX_LINES]))
    frames = [Frame(match[1], int(match[2]), match[3].strip()) for match in matches]
    return tuple(reversed(frames[-MAX_FRAMES:]))
