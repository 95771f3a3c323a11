"""Runs the doctor's child processes, one or several, with a time limit. Independent of the checks."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtk.launch.children import Children

POLL_S = 0.05  # Chosen: far below the duration of the checks.
GRACE_S = 3.0  # Chosen: children torn down by a failure report soon after it; longer only delays the result.


@dataclass(slots=True)
class ChildOutput:
    """Output and exit of a child process."""

    records: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    """Why the output is incomplete; empty if the child succeeded."""
    late: bool = False
    """Whether it was killed at the time limit, or because another child failed."""


def run_child(arguments: Sequence[str], timeout_s: float) -> ChildOutput:
    """Run Python with these arguments in this environment, until it exits or the time limit is reached."""
    return run_children(arguments, timeout_s, {0: os.environ})[0]


def run_children(
    arguments: Sequence[str], timeout_s: float, environments: Mapping[int, Mapping[str, str]]
) -> list[ChildOutput]:
    """Run several at once; all are killed at the limit, and soon after one of them failed."""
    outputs = {number: ChildOutput() for number in environments}

    def read(ends_s: float, goes_on: Callable[[], object]) -> None:
        while goes_on() and time.monotonic() < ends_s:
            for number, record in children.lines(POLL_S):
                outputs[number].records.append(record)

    with Children(arguments, environments) as children:
        ends_s = time.monotonic() + timeout_s
        read(ends_s, lambda: children.running and not children.failed())
        if children.failed():
            read(min(ends_s, time.monotonic() + GRACE_S), lambda: children.running)
        late = children.running
        children.kill()
        read(time.monotonic() + GRACE_S, lambda: not children.ended)
        for failed in children.failed():
            outputs[failed.rank].problem = str(failed)
    for number in late:
        outputs[number].problem, outputs[number].late = f"no answer in {timeout_s:.0f} s", True
    return list(outputs.values())
