"""Progress on standard error: one line that is rewritten on a terminal, occasional lines in a file."""

import io
import shutil
import sys
import threading
import time
from typing import TextIO

AFTER_S = 2.0  # Shorter work prints nothing.
EVERY_S = 5.0  # Between lines where nobody sees them rewritten.
_REWRITTEN_S = 0.1  # Ten times a second looks continuous.
_LOOKED_S = 0.5  # Chosen: how often a silent thread looks whether the work is done.


class Progress:
    """Reports progress on standard error; standard output is not affected."""

    def __init__(self, *, after_s: float = 0.0, terminal_only: bool = False, stream: TextIO | None = None) -> None:
        """Print nothing before `after_s` seconds."""
        self.stream = stream or sys.stderr or io.StringIO()  # None where whoever started this closed it.
        self.terminal = self.stream.isatty()
        self.silent = terminal_only and not self.terminal
        self.from_s = time.monotonic() + after_s
        self._shown_s = 0.0
        self._shown = False

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def show(self, text: str) -> None:
        """Show text that the next one may replace. Frequent calls are throttled."""
        now_s = time.monotonic()
        every_s = _REWRITTEN_S if self.terminal else EVERY_S
        if self.silent or now_s < self.from_s or now_s - self._shown_s < every_s:
            return
        self._shown_s = now_s
        # Without line breaks and control sequences, which names in evidence may hold.
        line = "".join(c if c.isprintable() else "?" for c in f"dtk: {text}")
        if self.terminal:
            self._shown = True
            self.stream.write(f"\r\x1b[K{line[: max(1, shutil.get_terminal_size().columns - 1)]}")
        else:
            self.stream.write(f"{line}\n")
        self.stream.flush()

    def line(self, text: str) -> None:
        """Print a permanent line."""
        self.end()
        self.stream.write(f"dtk: {text}\n")
        self.stream.flush()

    def end(self) -> None:
        """Leave the terminal with an empty line."""
        if self._shown:
            self._shown = False
            self.stream.write("\r\x1b[K")
            self.stream.flush()


class Busy:
    """`dtk: simulating one step ... 4 s`, from the third second on; where stderr is no terminal, once a text."""

    def __init__(self, text: str, stream: TextIO | None = None, *, shown: bool = True) -> None:
        self.shown = shown
        self._progress = Progress(stream=stream)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self.now(text)

    def now(self, text: str) -> None:
        """Set the text of the activity that starts now."""
        self._lasting = (text, time.monotonic())

    def __enter__(self) -> "Busy":
        if self.shown:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self.shown:
            self._thread.join()
            self._progress.end()

    def _show(self) -> None:
        announced = ""
        pause_s = AFTER_S
        while not self._done.wait(pause_s):
            pause_s = min(_LOOKED_S, AFTER_S)
            text, since_s = self._lasting
            lasted_s = time.monotonic() - since_s
            if self._progress.terminal:
                self._progress.show(f"{text} ... {lasted_s:.0f} s")
            elif lasted_s >= AFTER_S and text != announced:
                announced = text
                self._progress.line(f"{text} ...")
