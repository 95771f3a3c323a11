"""What a rank's host does, in words: everything that a stack can show has a fix, and names its line."""

from typing import get_args

import pytest

from diagnostics.causes.hang._host import _TABLE, doing, fix
from diagnostics.evidence.model import Frame
from diagnostics.evidence.stacks.activity import Doing, Standing

LINE = Frame("/job/src/loader.py", 7, "get")
UNTOLD = {"collective", "user code", "unknown"}
"""Of these a stack shows nothing that could be fixed by itself."""


@pytest.mark.parametrize("what", get_args(Doing))
def test_every_activity_has_a_fix_at_its_line(what: Doing) -> None:
    at = Standing(what, "waiting for a queue", LINE)
    assert (what in _TABLE) == (what not in UNTOLD)
    assert fix(at, "look there").endswith(" (/job/src/loader.py:7)")
    assert fix(Standing(what, "x", None), "look there") == _TABLE.get(what, "look there")


def test_a_place_is_named_without_its_folders() -> None:
    at = Standing("lock", "waiting for a queue", LINE, "which something else has to fill")
    assert doing(at) == "waiting for a queue (loader.py:7 in get)"
    assert doing(at, explained=True) == "waiting for a queue, which something else has to fill (loader.py:7 in get)"
    assert doing(Standing("lock", "waiting", None), explained=True) == "waiting"
