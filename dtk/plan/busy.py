"""One line on stderr while something takes long. Knows nothing of what it is that takes long."""

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

AFTER_S = 2.0
_EVERY_S = 0.5


class Busy:
    """`dtk: simulating one step ... 4 s`, from the third second on; one plain line where stderr is no terminal."""

    def __init__(self, text: str, stream: TextIO | None = None) -> None:
        self.text = text
        self.stream = stream or sys.stderr
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> "Busy":
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done.set()
        self.thread.join()

    def _show(self) -> None:
        began_s = time.monotonic()
        width = 0
        if self.done.wait(AFTER_S):
            return
        if not self.stream.isatty():
            self.stream.write(f"dtk: {self.text} ...\n")
            self.stream.flush()
            return
        while True:
            line = f"dtk: {self.text} ... {time.monotonic() - began_s:.0f} s"
            line = line[: max(1, shutil.get_terminal_size().columns - 1)]
            width = max(width, len(line))
            self.stream.write("\r" + line.ljust(width))
            self.stream.flush()
            if self.done.wait(_EVERY_S):
                break
        self.stream.write("\r" + " " * width + "\r")
        self.stream.flush()
