"""The stack that torch's watchdog prints of the collective that timed out: the user's own line in a plain log.

Sources: ProcessGroupNCCL.cpp and FlightRecorder.hpp since 2.4; it takes a flight recorder with stacks.
"""

import re
from dataclasses import dataclass
from typing import Any

from diagnostics.evidence.calls import is_library

HEAD = "Stack trace of the failed collective:"
MAX_FRAMES = 256
_FRAME = re.compile(r"#(\d{1,4}) (.{1,400}?) from (.{1,1000}):(\d{1,9})$")


@dataclass(slots=True)
class CollectiveStack:
    """Takes the lines behind one head; a line out of turn, as of another rank, ends it."""

    number: int = 0
    """Line in which it began; 0 = no stack is being read."""
    rank: int | None = None
    frames: int = 0
    op: str = ""
    """Function of torch that the user's line called."""

    def begin(self, number: int, rank: int | None) -> None:
        """Begin a stack after its first line."""
        self.number, self.rank, self.frames, self.op = number, rank, 0, ""

    def feed(self, text: str) -> dict[str, Any] | None:
        """Read the next line; return the innermost frame outside torch once it is known, with the `op` in it."""
        match = _FRAME.match(text.strip())
        if match is None or int(match[1]) != self.frames or self.frames >= MAX_FRAMES:
            self.number = 0
            return None
        self.frames += 1
        if is_library(match[3]):
            self.op = self.op or match[2].strip()
            return None
        self.number = 0
        return {"function": match[2].strip(), "file": match[3], "line": int(match[4]), "op": self.op}
