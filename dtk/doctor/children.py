"""Runs the doctor's own child processes: one or several, with a limit. Knows none of the checks."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtk.launch.children import Children

POLL_S = 0.05
GRACE_S = 3.0
"""How long the others may go on after one child failed."""


@dataclass(slots=True)
class Said:
    """What a child left."""

    records: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    """Why it is not whole; empty = it ended well."""
    late: bool = False
    """It had to be killed at the limit, or because another one failed."""


def run_child(arguments: Sequence[str], timeout_s: float) -> Said:
    """Run this Python with some arguments, in this environment, to its end or the limit."""
    return run_children(arguments, timeout_s, {0: os.environ})[0]


def run_children(
    arguments: Sequence[str], timeout_s: float, environments: Mapping[int, Mapping[str, str]]
) -> list[Said]:
    """Run several at once; all are killed at the limit, and soon after one of them failed.

    Args:
        arguments: of this Python.
        timeout_s: longest wait for all of them, in seconds.
        environments: number of the child -> its variables.
    """
    said = {number: Said() for number in environments}
    with Children(arguments, environments) as children:
        ends_s = time.monotonic() + timeout_s
        failing = False
        while children.running and time.monotonic() < ends_s:
            _take(children, said)
            if not failing and children.failed():
                failing, ends_s = True, min(ends_s, time.monotonic() + GRACE_S)
        late = children.running
        children.kill()
        ends_s = time.monotonic() + GRACE_S
        while not children.ended and time.monotonic() < ends_s:
            _take(children, said)
        for one in children.failed():
            said[one.rank].problem = str(one)
    for number in late:
        said[number].problem, said[number].late = f"no answer in {timeout_s:.0f} s", True
    return list(said.values())


def _take(children: Children, said: Mapping[int, Said]) -> None:
    for number, record in children.lines(POLL_S):
        said[number].records.append(record)
