"""Texts about stacks: what a rank's host does and how to fix it, and the call that a rank is in."""

from typing import Literal

from diagnostics.analysis.stall.stack_evidence import InCollective
from diagnostics.causes.declared import Texts
from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import Phrase, file_name
from diagnostics.evidence.stacks.activity import Activity, Doing

_TEXTS = Texts(__file__)
_FIXES: dict[Doing | Literal["other"], str] = table_beside(__file__)["fixes"]


def fix(at: Activity, look: Phrase | str = _FIXES["other"]) -> str:
    """Return the fix; `look` if the stack does not show what the host does."""
    return str(_FIXES.get(at.doing, look)) + (f" ({at.frame.file}:{at.frame.line})" if at.frame else "")


def doing(at: Activity, explained: bool = False) -> str:
    """Return a text such as `waiting for a queue (loader.py:7 in get)`; with `explained`, in a form for a sentence."""
    frame = at.frame
    words = f"{at.words}, {at.aside}" if explained and at.aside else str(at.words)
    return words + (f" ({file_name(frame.file)}:{frame.line} in {frame.function})" if frame else "")


def described(place: InCollective) -> str:
    """Return the operation and its line, such as `barrier (train.py:25)`."""
    at = f" ({file_name(place.site.file)}:{place.site.line})" if place.site else ""
    return (place.op or str(_TEXTS.phrase("no_stack"))) + at
