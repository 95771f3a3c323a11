"""What a rank's host does, in words, and how to fix it."""

from typing import Literal

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import Phrase, file_name
from diagnostics.evidence.stacks.activity import Doing, Standing

_TABLE: dict[Doing | Literal["other"], str] = table_beside(__file__)


def fix(at: Standing, look: Phrase | str = _TABLE["other"]) -> str:
    """Return what to change. `look` is used when the stack does not show what the host does."""
    return str(_TABLE.get(at.doing, look)) + (f" ({at.frame.file}:{at.frame.line})" if at.frame else "")


def doing(at: Standing, explained: bool = False) -> str:
    """Return a text such as `waiting for a queue (loader.py:7 in get)`; in a sentence `explained`."""
    frame = at.frame
    words = f"{at.words}, {at.aside}" if explained and at.aside else at.words
    return words + (f" ({file_name(frame.file)}:{frame.line} in {frame.function})" if frame else "")
