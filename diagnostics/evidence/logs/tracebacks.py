"""Assembles Python tracebacks line by line: chained ones, those of data loader workers, interleaved streams.

Of a chain one exception is kept: the first, where the others only wrap it or come of clearing up after it, else the
one that was raised while others were being handled. What people paste is often cut, so frames without a head and the
last line alone are taken too. Knows nothing of files and ranks.
"""

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from diagnostics.contract.files import patterns_beside
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.endings import is_victim, kind_of_exception
from diagnostics.evidence.model import Frame

MAX_FRAMES = 200
MAX_MESSAGE = 2000
"""Maximum characters of a message."""
_QUOTED = 100
"""Characters of an exception's message by which a repetition is recognized: wrappers may cut the rest."""
_MAX_LINES = 2000
"""Maximum lines of one traceback; longer text is not a traceback."""

_TEXT = patterns_beside(__file__)
"""Compiled patterns, documented in the table."""
START, SPAWNED, HEAD, FRAME, WHAT, OWN_RANK, CUT_END, LAST, CARETS = (
    _TEXT[name] for name in ("start", "spawned", "head", "frame", "what", "own_rank", "cut_end", "last", "carets")
)
_GAP, _GAP_IN_CHAIN = 3, 8  # Lines of others after which a traceback ends; in a chain or a message some are its own.
_WORDLESS = frozenset({"Empty", "Full", "StopIteration"})
"""Of queues and iterators: what wraps them says what is wrong."""
_NO_PATH = " ❱╭╰│|+."
"""How lines of code, of variables and of frames that are left out begin."""
_MAX_PATH = 4096


class Raised(Struct):
    """One exception, its frames innermost first."""

    type: str
    """Class name without its module, as in `error.json`."""
    message: str
    frames: tuple[Frame, ...]
    aside: bool = False
    """Whether it did not end the process: raised in a side thread or a destructor."""
    remote: bool = False
    """Whether a process repeats another one's exception, without its rank."""
    caught: bool = False
    """Whether a handler printed it: that of the interpreter, of what nobody caught, begins where a process does."""


def is_entry(frames: Sequence[Frame]) -> bool:
    """Return whether a traceback begins where a process does, as that of an exception that nobody caught."""
    outer = frames[-1]
    return outer.function == "<module>" or is_library(outer.file) or outer.file.endswith(".pyx")  # Ray's is compiled.


class Box(Struct):
    """Translates the tracebacks that rich draws in a box (Typer, Lightning) into lines as Python prints them."""

    inside: bool = False
    cut: str = ""
    """A frame so far whose path went over the end of its line."""

    def lines(self, text: str) -> tuple[str, ...]:
        """Return the lines for one input line; empty for borders, code and values of variables."""
        if _TEXT["box"].match(text):
            self.inside, self.cut = True, ""
            return ("Traceback (most recent call last):",)
        row = _TEXT["box_row"].match(text) if self.inside else None
        if row is None:
            ended, self.inside = self.inside and bool(_TEXT["box_end"].match(text)), False
            return () if ended else (text,)
        whole = self.cut + row[1]
        is_suffix = bool(self.cut) and row[1][0] == "." != row[1][1:2]  # The line was full before `.py`.
        is_path = (is_suffix or row[1][0] not in _NO_PATH) and len(whole) < _MAX_PATH
        frame = _TEXT["box_frame"].match(whole) if is_path else None
        # Folded within a word where the line is full, else between words.
        self.cut = (whole if whole[-1] != " " else f"{whole.rstrip()} ") if is_path and frame is None else ""
        return (f'  File "{frame[1]}", line {frame[2]}, in {frame[3]}',) if frame else ()


class Assembler(Struct):
    """Consumes the lines of one stream; `take` returns completed exceptions."""

    first: Raised | None = None
    """The exception that is kept of the chain so far, complete but for what may still be chained to it."""
    frames: list[Frame] = field(default_factory=list)
    """Frames, outermost first."""
    inside: bool = False
    """Whether the current line is between `Traceback` and the exception's line."""
    whole: bool = False
    """Whether its head was there, so that no outer frame is missing."""
    chained: bool = False
    handled: bool = False
    """What is chained was raised while the kept one was being handled, rather than wraps it."""
    nested: bool = False
    """Within `Original Traceback` of a data loader's worker."""
    indent: int = 0
    quiet: int = 0
    """Number of lines since the exception's line."""
    length: int = 0
    done: list[Raised] = field(default_factory=list)
    message_open: bool = False
    wordless: bool = False
    """Whether the last exception has no colon behind its class, so that no line continues its message."""
    aside: bool = False
    """Set by the caller before the first line of such a traceback."""

    @property
    def active(self) -> bool:
        """Return whether the next line may belong to this traceback."""
        return self.inside or self.first is not None

    def separate(self, text: str) -> bool:
        """Return whether a traceback that begins with this line is unrelated to the completed one before it."""
        return self.first is not None and not (self.chained or _TEXT["original"].match(text))

    def feed(self, text: str) -> None:
        """Read one line without its prefix."""
        if START.match(text):
            self.nested = self.first is not None and bool(_TEXT["original"].match(text))
            if self.separate(text):
                self._close()
            self.inside, self.length, self.frames, self.whole = True, 0, [], "(RANK" not in text
            self.indent = len(text) - len(text.lstrip(" |+-"))
        elif self.inside:
            self._inside(text)
        elif self.first is not None:
            self._after(text)
        if not self.active and _TEXT["cut_frame"].match(text):
            self.inside, self.length, self.frames, self.indent, self.whole = True, 0, [], 0, False
            self._inside(text)
        elif not self.active and _TEXT["lone"].match(text) and (end := _TEXT["end"].match(text)) is not None:
            self.feed_end(end[1], end[2] or "")

    def take(self, end: bool = False) -> list[Raised]:
        """Return the exceptions completed since the last call; with `end` also the last one."""
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
        if self.frames and text.lstrip(" |").startswith("raise "):
            self.frames[-1] = replace(self.frames[-1], raises=True)
        depth = len(text) - len(text.lstrip(" |"))
        if not text.strip() or depth > self.indent or _TEXT["no_frame"].match(text):
            self.inside = self.length <= _MAX_LINES
            return
        if task := _TEXT["remote"].match(text):
            self.first = Raised(task[task.lastindex or 0], "", tuple(reversed(self.frames)), self.aside, remote=True)
            self.frames, self.nested = [], True
            return
        end = _TEXT["end"].match(text)
        self.inside, self.wordless = False, end is not None and end[2] is None
        if end is not None and (self.frames or (self.length == 1 and CUT_END.match(text))):
            self.feed_end(end[1], end[2] or "", tuple(reversed(self.frames)))

    def feed_end(self, type_: str, message: str, frames: tuple[Frame, ...] = ()) -> None:
        """Take the last line of a traceback: the class of its exception, with its module, and the message."""
        caught = self.whole and bool(frames) and not is_entry(frames)
        raised = Raised(type_.rpartition(".")[2], message.strip()[:MAX_MESSAGE], frames, self.aside, caught=caught)
        self.quiet, self.message_open = 0, True
        if self.first is None:
            self.first = raised
        elif self.nested:  # the worker's own exception is the cause, the reader's frames lie around it
            raised.frames = (*raised.frames, *self.first.frames)[:MAX_FRAMES]
            raised.remote, raised.caught = self.first.remote, self.first.caught
            self.first = raised
        elif (self.handled and not _is_consequence(raised, self.first)) or self.first.type in _WORDLESS:
            self.first = raised
        else:
            self.message_open, self.first.caught = False, raised.caught
            then = f"{raised.type}: {raised.message}" if raised.message else raised.type
            self.first.message = f"{self.first.message} (then {then})".strip()[:MAX_MESSAGE]
            # Python prints only the callers up to where an exception was handled; the later has those of that frame.
            own, later = self.first.frames, [(frame.file, frame.function) for frame in raised.frames]
            handler = next(((frame.file, frame.function) for frame in own[-1:]), None)
            at = later.index(handler) + 1 if handler in later else len(later)
            self.first.frames = (*own, *raised.frames[at:])[:MAX_FRAMES]
        self.chained = self.handled = self.nested = False

    def _after(self, text: str) -> None:
        self.quiet += 1
        if chain := _TEXT["chain"].match(text):
            self.chained, self.handled, self.message_open = True, bool(chain[1]), False
        elif not text.strip() or self.wordless or _TEXT["new_record"].match(text):
            self.message_open = False
        elif (
            self.first is not None
            and self.first.message
            and not (_TEXT["continues"].match(text) or (self.quiet == 1 and self.first.message.endswith(":")))
        ):
            self.message_open = False  # the log continues with something else
        elif self.message_open and self.first is not None and len(self.first.message) < MAX_MESSAGE:
            self.first.message = f"{self.first.message}\n{text.strip()}".strip()[:MAX_MESSAGE]
        if self.quiet > (_GAP_IN_CHAIN if self.chained or self.message_open else _GAP):
            self._close()

    def _close(self) -> None:
        if self.first is not None:
            self.done.append(self.first)
        self.first, self.quiet = None, 0
        self.chained = self.handled = self.nested = self.aside = False


def _is_consequence(later: Raised, earlier: Raised) -> bool:
    """Whether an exception that was raised while another was handled is no news beside it."""
    after, before = (kind_of_exception(raised.type, raised.message, raised.frames) for raised in (later, earlier))
    if is_victim(before) or (earlier.message and earlier.message[:_QUOTED] in later.message):
        return True  # What the handler of a lost peer runs into comes of it as well.
    # A signal that came while the rank waited in C++ is raised by the first bytecode after that wait has failed.
    return before == "oom" or is_victim(after) or after == "stopped"


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
