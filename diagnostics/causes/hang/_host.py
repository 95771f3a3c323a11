"""What a rank's host does, in words, and how to fix it."""

from diagnostics.contract.formatting import file_name
from diagnostics.evidence.stacks.activity import Doing, Standing

_FIX: dict[Doing, str] = {
    "data loader": (
        "look at what the data loader reads on that rank (slow disk, dead workers, a lock inherited by fork)"
    ),
    "file I/O": "move the file access off the path that other ranks wait for, or let all ranks do it",
    "lock": "find out who holds the lock, or should fill the queue, that this line waits for",
    "compile": "compile before the first collective, or raise the timeout of the group for the first steps",
    "process": "look at the process that this line waits for: whether it lives, and what it waits for itself",
    "network": "look at the other side of the connection, and give it a timeout",
    "debugger": "take the breakpoint out",
    "device": "find out what the device of that rank runs: its own dump or stack says which kernel is the last",
    "stopped": "let it go on (kill -CONT its process, or leave the debugger), and find out who stopped it",
    "computing": "find out whether the loop there ends, and why that rank has more to do than the others",
    "sleep": "take the sleep out, or let all ranks wait at a barrier with a longer timeout",
}


def fix(at: Standing, look: str = "look at what it does there") -> str:
    """Return what to change. `look` is used when the stack does not show what the host does."""
    return _FIX.get(at.doing, look) + (f" ({at.frame.file}:{at.frame.line})" if at.frame else "")


def doing(at: Standing, explained: bool = False) -> str:
    """Return a text such as `waiting for a queue (loader.py:7 in get)`; in a sentence `explained`."""
    frame = at.frame
    words = f"{at.words}, {at.aside}" if explained and at.aside else at.words
    return words + (f" ({file_name(frame.file)}:{frame.line} in {frame.function})" if frame else "")
