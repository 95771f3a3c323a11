"""What a command is at, on standard error: one line that is rewritten on a terminal, a line now and then in a file."""

import sys
import time

EVERY_S = 5.0
"""Between lines where nobody sees them rewritten."""
_REWRITTEN_S = 0.1


class Progress:
    """Tells what is going on; standard output stays what it is."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._told_s = 0.0
        self._shown = False

    def say(self, text: str) -> None:
        """Something that the next text may replace."""
        now_s = time.monotonic()
        if now_s - self._told_s < (_REWRITTEN_S if self._terminal else EVERY_S):
            return
        self._told_s = now_s
        if self._terminal:
            self._shown = True
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        else:
            print(f"dtk: {text}", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        """Something that stays."""
        self.end()
        print(f"dtk: {text}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the terminal with an empty line."""
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
